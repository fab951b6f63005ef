"""The report on a warehouse: one HTML file without external resources, with charts and tables."""

from trunkline.spark.report.writer import report as report
