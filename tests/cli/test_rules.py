"""Rules that hold for every command: what its help says, one spelling for one idea, JSON for scripts, completion."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.commands import DEADLINE_S, TRUNKLINE, environment
from trunkline.cli.main import COMMANDS, GROUPS, command, run

SPELLED = {
    "--rate": {"--per-s", "--speed", "--messages-per-s", "--throughput"},
    "--every": {"--every-s", "--interval", "--refresh", "--period", "--poll"},
    "--output": {"--out", "--to-file", "--destination", "--save"},
    "--rows": {"--limit", "--max-rows", "--head"},
    "--count": {"--times", "--number"},
    "--timeout": {"--timeout-s", "--wait-s"},
    "--dry-run": {"--dry", "--simulate", "--pretend"},
    "--yes": {"--force", "--confirm", "--assume-yes"},
    "--journal": {"--directory", "--dir"},
    "--hub": {"--url", "--address", "--server", "--broker"},
}
"""The one spelling of an idea, and others that no command has."""
SHORT = {"-n": {"--count", "--rows"}, "-o": {"--output"}, "-v": {"--verbose"}, "-h": {"--help"}}


def below(found: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(found, "commands"):
        yield words, found
        return
    for name, each in sorted(found.commands.items()):
        yield from below(each, (*words, name))


EVERY = dict(below(command()))


def test_all_commands_are_walked() -> None:
    assert {words[0] for words in EVERY} == COMMANDS.keys() | GROUPS.keys()
    assert len(EVERY) > 50


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_a_command_keeps_the_rules(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    options = {name for each in EVERY[words].params for name in each.opts if name.startswith("-")}
    assert "--json" in options
    for spelling, others in SPELLED.items():
        assert not options & others, f"say {spelling}"
    for each in EVERY[words].params:
        for short in SHORT.keys() & set(each.opts):
            assert SHORT[short] & set(each.opts), f"{short} means {SHORT[short]}"
    assert run([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Usage: trunkline " + " ".join(words) in text
    assert "[[" not in text
    assert not re.search(r"<(bool|int|float|str|path|list)", text)
    assert not re.search(r"[{}]", text.partition("\n\n")[0])
    assert all(each.help or each.hidden for each in EVERY[words].params), "every option and argument says what it is"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = capfd.readouterr().out
    assert "_TRUNKLINE_COMPLETE=complete_" + shell in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert run(["completion", "tcsh"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "wanted"),
    [("trunkline dead", "dead-letters"), ("trunkline journal ", "tail"), ("trunkline pub --pri", "--priority")],
)
def test_the_script_of_bash_completes(typed: str, wanted: str) -> None:
    words = typed.split(" ")
    asked = {"_TRUNKLINE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        TRUNKLINE, env=environment(**asked), capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert wanted in done.stdout.split(), (done.stdout, done.stderr)
