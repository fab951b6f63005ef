"""The format of the help of all commands: placeholders for values, and arguments as users write them."""

from __future__ import annotations

from typing import Any

WORDS = {"bool": "", "int": "N", "int range": "N", "float": "N", "float range": "N", "str": "TEXT", "path": "PATH"}
"""The default placeholder for an option's value in the help. A switch has none."""


def name_values(command: Any, parent: Any = None) -> None:
    """Set the placeholders of all options and arguments of a command and its subcommands."""
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
    # An argument is described by its help text.
    argument.display_type_rich = lambda ctx: None
