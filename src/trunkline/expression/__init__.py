"""The filter language of `where` and of routing rules: how it is read, translated into Python, and what values do."""

from trunkline.expression.filter import Filter as Filter
from trunkline.expression.filter import compile_filter as compile_filter
