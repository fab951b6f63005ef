"""How the help of every command reads: types as words of this program, arguments as people write them."""

from __future__ import annotations

from typing import Any

WORDS = {"bool": "", "int": "N", "int range": "N", "float": "N", "float range": "N", "str": "TEXT", "path": "PATH"}
"""What help shows for the value of an option without a name of its own. A switch has none."""


def name_values(command: Any, parent: Any = None) -> None:
    """Name the values of all options and arguments, here and in all commands below."""
    context = command.context_class(command, parent=parent, info_name=command.name, **command.context_settings)
    for parameter in command.get_params(context):
        if parameter.param_type_name == "argument":
            _name_argument(parameter)
        elif parameter.metavar is None:
            shown = str(parameter.display_type_rich(context) or "").strip("<>")
            kind = shown.removeprefix("list[").removesuffix("]").lower()
            parameter.metavar = WORDS.get(kind, shown)
    for below in getattr(command, "commands", {}).values():
        name_values(below, context)


def _name_argument(argument: Any) -> None:
    name = argument.metavar = argument.metavar or argument.name.upper()
    word = f"{name}..." if argument.nargs != 1 else name
    pieces = [word if argument.required else f"[{word}]"]
    argument.get_usage_pieces = lambda context: pieces
    # Of an argument its help says what it is.
    argument.display_type_rich = lambda ctx: None
