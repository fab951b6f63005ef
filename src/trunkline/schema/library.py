"""jsonschema-rs, imported when the first schema is used: the import takes 50 ms, and many programs do not need it.

Here it is configured for schemas from outside. It fetches nothing, and its regular expressions run in linear time.
Look-around and back-references are not supported, because they need an engine with exponential worst cases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trunkline.errors import MissingExtra

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

MAX_REGEX_BYTES: Final = 256 * 1024
"""The size limit of one compiled regular expression.

Of the expressions that were tested with this limit, the slowest took 1 µs for each character of a text. With the
library's default limit of 10 MiB, `(a{0,1000}){0,100}b` did not finish within ten minutes for a million characters.
"""


def require() -> None:
    """Raises MissingExtra if the library is not installed."""
    try:
        import jsonschema_rs  # noqa: F401
    except ImportError as error:
        raise MissingExtra("hub", "checking payloads against schemas") from error


def make(document: Any) -> Validator:
    """Compile a schema.

    Raises the library's ValidationError for an invalid schema, and ValueError for values that are not JSON.
    """
    require()
    from jsonschema_rs import Draft202012Validator, RegexOptions

    return Draft202012Validator(
        document,
        offline=True,
        validate_formats=False,
        # Otherwise an error would contain the whole value as text.
        mask="it",
        pattern_options=RegexOptions(size_limit=MAX_REGEX_BYTES, dfa_size_limit=4 * MAX_REGEX_BYTES),
    )


def validation_error() -> type[ValidationError]:
    require()
    from jsonschema_rs import ValidationError

    return ValidationError
