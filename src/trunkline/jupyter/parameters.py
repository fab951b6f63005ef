"""Parameters of a notebook: values for the variables that its cell with the tag `parameters` sets."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from trunkline.errors import UsageError
from trunkline.jupyter.notebook_format import nbformat

PARAMETERS: Final = "parameters"
INJECTED: Final = "injected-parameters"


def inject(notebook: Any, parameters: Mapping[str, Any], language: str) -> None:
    """Put a cell that sets them after the cell with the tag `parameters`, or at the top if there is none.

    A cell from an earlier run is replaced. Raises UsageError for values that the language cannot express.
    """
    cell = nbformat().v4.new_code_cell(source(parameters, language), metadata={"tags": [INJECTED]})
    if "id" not in (notebook.cells[0] if notebook.cells else {}):
        # Notebooks before 4.5 have no ids of cells.
        cell.pop("id", None)
    for place, known in enumerate(notebook.cells):
        if INJECTED in known.metadata.get("tags", ()):
            notebook.cells[place] = cell
            return
    tagged = [place for place, known in enumerate(notebook.cells) if PARAMETERS in known.metadata.get("tags", ())]
    notebook.cells.insert(tagged[0] + 1 if tagged else 0, cell)


def source(parameters: Mapping[str, Any], language: str) -> str:
    """The code that sets the parameters."""
    how = LANGUAGES.get(language.lower())
    if how is None:
        known = ", ".join(sorted(LANGUAGES))
        raise UsageError(f"parameters are not supported in {language or 'an unknown language'}; supported: {known}")
    comment, assignment, value = how
    lines = [assignment.format(name=_checked(name), value=value(given)) for name, given in parameters.items()]
    return "\n".join([f"{comment} Parameters", *lines])


def _checked(name: str) -> str:
    if not name.isidentifier():
        raise UsageError(f"{name!r} is not a valid parameter name: use letters, digits and underscores")
    return name


def _python(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_python, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_python(key)}: {_python(each)}' for key, each in value.items())}}}"
    raise _unknown(value)


def _json(value: object) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _unknown(value) from error


def _r(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, (list, tuple)):
        return f"list({', '.join(map(_r, value))})"
    if isinstance(value, dict):
        return f"list({', '.join(f'{_json(str(key))} = {_r(each)}' for key, each in value.items())})"
    return _json(value)


def _julia(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_julia, value))}]"
    if isinstance(value, dict):
        return f"Dict({', '.join(f'{_julia(key)} => {_julia(each)}' for key, each in value.items())})"
    # In Julia, a dollar sign in a text begins an expression.
    return _json(value).replace("$", "\\$")


def _bash(value: object) -> str:
    if value is None:
        return "''"
    text = value if isinstance(value, str) else _json(value)
    return "'" + text.replace("'", "'\\''") + "'"


def _unknown(value: object) -> UsageError:
    return UsageError(f"a parameter of the type {type(value).__name__} cannot be written as code: pass plain values")


Written = tuple[str, str, Callable[[object], str]]
"""The syntax of comments, assignments and values."""

LANGUAGES: Final[dict[str, Written]] = {
    "python": ("#", "{name} = {value}", _python),
    "r": ("#", "{name} = {value}", _r),
    "julia": ("#", "{name} = {value}", _julia),
    "javascript": ("//", "var {name} = {value};", _json),
    "typescript": ("//", "var {name}: any = {value};", _json),
    "bash": ("#", "{name}={value}", _bash),
}
