"""Commands that cannot do their work say in one line why, and what to do next."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import trunkline as tl
from tests.cli.commands import DEADLINE_S
from tests.hub.up import Up, up
from tests.warm import NEW_PYTHON

WITHOUT = "import sys; sys.modules.update(dict.fromkeys({modules!r}))\nfrom trunkline.cli import main; sys.exit(main())"


def told(*words: str, without: tuple[str, ...] = (), code: int) -> str:
    """What a command prints before it ends with this code, where these modules are not installed."""
    done = subprocess.run(
        [*NEW_PYTHON, "-c", WITHOUT.format(modules=without), *words],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    return done.stderr


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program uses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("hub"), durable=True) as running:
        yield running


@pytest.mark.parametrize("scheme", ["tcp", "zmq+tcp"])
def test_a_port_that_is_in_use(scheme: str, taken: int) -> None:
    url = f"{scheme}://127.0.0.1:{taken}"
    assert told("up", "--listen", url, code=1) == (
        f"error: another program is already listening at {url}: stop it, or pass another port with --listen\n"
    )


def test_a_port_for_metrics_that_is_in_use(taken: int, tmp_path: Path) -> None:
    place = f"unix://{tmp_path}/hub.sock"
    assert told("up", "--listen", place, "--metrics", str(taken), code=2) == (
        f"error: --metrics {taken}: the port is in use by another program: choose another\n"
    )


def test_a_journal_that_a_hub_has(hub: Up, tmp_path: Path) -> None:
    text = (
        f"The hub at {hub.address} (pid {hub.pid}) is writing to the journal {hub.journal}:"
        f' connect to it with connect("{hub.address}"). Reading does not need the lock'
    )
    with pytest.raises(tl.JournalLocked) as locked:
        tl.connect("memory:", journal=hub.journal)
    assert str(locked.value) == text
    assert (locked.value.pid, locked.value.hub) == (hub.pid, hub.address)
    another = f"unix://{tmp_path}/another.sock"
    assert told("up", "--journal", str(hub.journal), "--listen", another, code=1) == f"error: {text}\n"


@pytest.mark.parametrize(
    "words", [("up", "--listen", "zmq+tcp://127.0.0.1:0"), ("pub", "a", "1", "--hub", "zmq+tcp://127.0.0.1:1")]
)
def test_zeromq_without_its_extra(words: tuple[str, ...]) -> None:
    assert told(*words, without=("zmq",), code=2) == (
        "error: the ZeroMQ transport needs an optional dependency:"
        " pip install 'trunkline[hub]', or '.[hub]' in a checkout\n"
    )


@pytest.mark.parametrize("words", [("pipeline", "run", "journal"), ("pipeline", "sql", "journal", "select 1")])
def test_the_pipeline_without_its_extra(words: tuple[str, ...]) -> None:
    assert told(*words, without=("pyspark", "pyarrow"), code=2) == (
        "error: the pipeline (Spark) needs an optional dependency:"
        " pip install 'trunkline[spark]', or '.[spark]' in a checkout\n"
    )
