"""The pipeline: Spark jobs over lake and journal, on any master.

Using it needs the extra `spark`; importing it does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trunkline.spark.session.start import session as session

if TYPE_CHECKING:
    from trunkline.spark.pipeline.run import Pipeline as Pipeline
    from trunkline.spark.pipeline.views import table as table
    from trunkline.spark.settings import PipelineSettings as PipelineSettings
    from trunkline.spark.source.dataframe import fates as fates
    from trunkline.spark.source.dataframe import messages as messages

# These import pyspark, so they are imported on first use.
_LATER = {
    "Pipeline": "pipeline.run",
    "PipelineSettings": "settings",
    "fates": "source.dataframe",
    "messages": "source.dataframe",
    "table": "pipeline.views",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
