"""The filter language of `where` and of routing rules: syntax, translation into Python, behaviour of values."""

from trunkline.expression.filter import Filter as Filter
from trunkline.expression.filter import compile_filter as compile_filter
