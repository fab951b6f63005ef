"""The pipeline: Spark over lake and journal, on any master. Needs the extra `spark`, and is imported without it."""

from trunkline.spark.start import session as session
