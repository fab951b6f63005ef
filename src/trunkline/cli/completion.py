"""`trunkline completion`: print the script that lets a shell complete commands and options."""

from __future__ import annotations

import enum
from importlib import import_module
from typing import Annotated

import typer

from trunkline.cli import show
from trunkline.cli.options import AsJson

PROGRAM = "trunkline"
VARIABLE = "_TRUNKLINE_COMPLETE"


class CompletionShell(enum.StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


HINTS = {
    CompletionShell.BASH: 'add to ~/.bashrc: eval "$(trunkline completion bash)"',
    CompletionShell.ZSH: 'add to ~/.zshrc, after compinit: eval "$(trunkline completion zsh)"',
    CompletionShell.FISH: "save it as ~/.config/fish/completions/trunkline.fish",
}


def completion(
    shell: Annotated[CompletionShell, typer.Argument(help="bash, zsh or fish.", metavar="SHELL")], json: AsJson = False
) -> None:
    """Print a script that lets a shell complete commands and options."""
    script = import_module("typer.completion").get_completion_script(
        prog_name=PROGRAM, complete_var=VARIABLE, shell=shell.value
    )
    if json:
        show.json({"shell": shell.value, "script": script, "next_step": HINTS[shell]})
        return
    print(script)
    if show.out.is_terminal:
        show.notice(HINTS[shell])
