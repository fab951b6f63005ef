"""The list of commands, the version and an unknown command are shown without importing the commands."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.commands import DEADLINE_S
from tests.warm import NEW_PYTHON
from trunkline.cli.main import COMMANDS, GROUPS, command, overview
from trunkline.cli.summaries import SUMMARIES

IMPORTED = (
    "import sys; from trunkline.cli.main import run, COMMANDS, GROUPS; code = run(sys.argv[1:])\n"
    "modules = {'trunkline.cli.' + place.partition(':')[0] for place in (*COMMANDS.values(), *GROUPS.values())}\n"
    "print(code, sorted(modules.intersection(sys.modules)))"
)


def test_each_command_has_its_summary() -> None:
    known = command().commands
    assert list(SUMMARIES) == [*COMMANDS, *GROUPS] == list(known)
    assert {name: " ".join(each.help.split("\n\n")[0].split()) for name, each in known.items()} == SUMMARIES


def test_the_list_of_commands_is_the_one_that_is_made_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    lists = []
    for made in (overview(), command()):
        with pytest.raises(SystemExit) as end:
            made(args=["-h"], prog_name="trunkline")
        assert end.value.code == 0
        lists.append(capsys.readouterr().out)
    assert lists[0] == lists[1]
    assert "dead-letters" in lists[0]


def test_the_package_is_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        overview()(args=["-h"], prog_name="trunkline")
    done = subprocess.run(
        [sys.executable, "-m", "trunkline", "-h"], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert (done.stdout, done.stderr) == (capsys.readouterr().out, "")
    assert "Usage: trunkline [OPTIONS] COMMAND" in done.stdout
    wrong = subprocess.run(
        [sys.executable, "-m", "trunkline", "chanels"], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert wrong.returncode == 2
    assert "trunkline -h" in wrong.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "Run the hub"),
        (["-h"], 0, "Run the hub"),
        (["--version"], 0, "trunkline 0."),
        (["chanels"], 2, "No such command 'chanels'. Did you mean 'channels'?"),
        (["--verison"], 2, "No such option: --verison"),
    ],
)
def test_no_command_is_imported_for_it(words: list[str], code: int, said: str) -> None:
    done = subprocess.run(
        [*NEW_PYTHON, "-c", IMPORTED, *words], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert said in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"{code} []"
