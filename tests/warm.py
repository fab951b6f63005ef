"""Python processes that start at once: forks of one process that has imported the library already.

Tests start hundreds of processes, and half of what these need is importing. During a run `subprocess.Popen` is the
`Popen` here, also for asyncio: for commands of this Python it gives the same pipes,
signals, exit codes and children. What a fork cannot be (a shell, another program, variables and options that Python
reads when it starts) is a new process, as always. Who needs a new process takes `NEW_PYTHON`.
"""

from __future__ import annotations

import ctypes
import gc
import io
import os
import pickle
import runpy
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
IMPORTED = (
    "uvloop",
    "typer._adapters",
    *(
        f"trunkline.cli.{name}"
        for name in ("main", "up", "talk", "watch", "clients", "explain", "directory", "journal")
    ),
    "trunkline.connect",
    "trunkline.actors",
    "trunkline.hub.serve",
    "trunkline.bus.blocking",
    "trunkline.brokers.hub.broker",
    "trunkline.transports.sockets",
)
"""Not pyarrow and numpy: they start threads, which a fork does not have."""
IMPORTED_FOR = {
    "nats://": ("trunkline.brokers.nats.broker",),
    "redis://": ("trunkline.brokers.redis.broker",),
    "page": ("nicegui",),
}
"""What is imported, once, when one of the words of a command begins so."""
NEW_PYTHON = (sys.executable, "-s")
"""For tests about what a program imports, what it is called, or how much memory it takes: it is no fork.

The option makes no other difference, because an environment has no packages of the user.
"""
MAX_REQUEST_BYTES = 1 << 20
PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class Start(NamedTuple):
    """What a process runs: the arguments after `python`."""

    words: list[str]
    folder: str
    environment: dict[str, str]
    new_session: bool = False


READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "TERM", "FORCE_COLOR", "NO_COLOR", "COLUMNS", "TTY_")
"""Variables that make a difference before the first line of a program runs, or when a library is imported."""


def read_at_start(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(READ_AT_START)}


class Stem:
    """The process that is forked, and the requests to it."""

    def __init__(self, without: Sequence[str] = ()) -> None:
        self.without = without
        """Keys of IMPORTED_FOR that are not imported, because that would start threads."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_REQUEST_BYTES)
        self.environment = read_at_start(os.environ)
        command = [sys.executable, "-m", "tests.warm", str(theirs.fileno()), *without]
        self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def start(self, what: Start, streams: Sequence[int]) -> int:
        """The pid of a new child of this process. 0 if this process cannot be forked any more."""
        its_turn, go_on = os.pipe()
        try:
            with _adopting():
                socket.send_fds(self._socket, [pickle.dumps(what)], [its_turn, *streams])
                pid = int(self._socket.recv(100))
            # Not before now: this process would adopt the orphans of a program that forks and ends at once.
            os.write(go_on, b"1")
        finally:
            os.close(its_turn)
            os.close(go_on)
        return pid

    def end(self) -> None:
        self._socket.close()
        self._process.wait()


@contextmanager
def _adopting() -> Iterator[None]:
    """A grandchild whose parent has ended becomes a child of this process, so that it can be waited for."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


class Warm:
    stem: Stem | None = None
    """There during a run: see tests/conftest.py."""
    turn = threading.Lock()

    @classmethod
    def start(cls, what: Start, streams: Sequence[int]) -> int:
        """The pid of a new child of this process."""
        with cls.turn:
            assert cls.stem is not None
            pid = cls.stem.start(what, streams)
            if not pid:
                cls.stem.end()
                cls.stem = Stem([*cls.stem.without, *keys_for(what)])
                pid = cls.stem.start(what, streams)
            assert pid
            return pid


def is_simple(command: Any, env: Mapping[str, str] | None, others: Sequence[object]) -> bool:
    """Whether a fork is equivalent to a new process."""
    if Warm.stem is None or any(others) or not isinstance(command, (list, tuple)) or command[0] != sys.executable:
        return False
    if unknown_option(command[1:]) or "ipykernel_launcher" in command:
        # A kernel writes its connection file as it starts. A fork would do so while jupyter_client reads it.
        return False
    return read_at_start(os.environ if env is None else env) == Warm.stem.environment


def unknown_option(words: Sequence[Any]) -> bool:
    """Whether the first option that `run` does not take itself is none of a program's own."""
    match words:
        case ["-u", *rest] | ["-W", "error", *rest]:
            return unknown_option(rest)
        case ["-m" | "-c", _, *_]:
            return False
        case [first, *_]:
            return str(first).startswith("-")
    return True


class Popen(subprocess.Popen[Any]):
    def _execute_child(self, args: Any, *rest: Any) -> None:
        executable, preexec, close_fds, pass_fds, cwd, env, _, _, shell, *pipes = rest[:15]
        *identity, new_session, process_group = rest[-6:]
        given = any(each not in (None, -1) for each in identity)
        no_folder = cwd is not None and not os.path.isdir(cwd)
        read, _, _, write, _, write_errors = pipes
        theirs = (read, write, write_errors)
        # Consoles are made when they are imported, and then know whether they are terminals.
        terminal = any(os.isatty(stream) for stream in theirs if stream != -1)
        others = (executable, preexec, not close_fds, pass_fds, shell, given, process_group != -1, no_folder, terminal)
        if not is_simple(args, env, others):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        streams = [stream if stream != -1 else number for number, stream in enumerate(theirs)]
        environment = dict(os.environ if env is None else env)
        what = Start([*map(os.fspath, args[1:])], os.fspath(cwd or os.getcwd()), environment, new_session)
        self.pid = Warm.start(what, streams)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def serve(descriptor: int, without: Sequence[str]) -> Start | None:
    """Fork until there are no more requests (None). In the fork: returns what to run."""
    asked = socket.socket(fileno=descriptor)
    while True:
        data, received, _, _ = socket.recv_fds(asked, MAX_REQUEST_BYTES, 4)
        if not data:
            return None
        its_turn, *streams = received
        what = Start(*pickle.loads(data))
        if not import_for(what, without):
            asked.send(b"0")
            return None
        pids, mine = os.pipe()
        middle = os.fork()
        if not middle:
            # The process in the middle ends at once, so that the requesting process becomes the parent.
            middle = os.getpid()
            if os.fork():
                os._exit(0)
            if what.new_session:
                os.setsid()
            os.write(mine, str(os.getpid()).encode())
            while os.getppid() == middle:
                time.sleep(0.0005)
            os.read(its_turn, 1)
            os.close(its_turn)
            os.close(pids)
            os.close(mine)
            asked.close()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            for stream in {*streams} - {0, 1, 2}:
                os.close(stream)
            return what
        os.close(mine)
        for stream in received:
            os.close(stream)
        answer = os.read(pids, 100)
        os.close(pids)
        os.waitpid(middle, 0)
        asked.send(answer)


def import_for(what: Start, without: Sequence[str]) -> bool:
    """Import what this program, and probably others after it, would import. False if that has started threads."""
    for key in keys_for(what):
        if key not in without and not sys.modules.keys() >= {*IMPORTED_FOR[key]}:
            for name in IMPORTED_FOR[key]:
                import_module(name)
            if not settle():
                return False
    return True


def keys_for(what: Start) -> list[str]:
    return [key for key in IMPORTED_FOR if any(word.startswith(key) for word in what.words)]


def reopen_streams() -> None:
    """New objects, because they remember whether the old ones were a file or a terminal."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, name)
        mode, buffering = ("wb", 0 if unbuffered else -1) if number else ("rb", -1)
        stream: Any = open(number, mode, buffering, closefd=False)  # noqa: SIM115  # for the rest of the process
        lines = number == 2 or os.isatty(number)
        through = bool(number) and unbuffered
        text = io.TextIOWrapper(stream, before.encoding, before.errors, line_buffering=lines, write_through=through)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def run(what: Start) -> None:
    """As Python itself does it."""
    os.chdir(what.folder)
    os.environ.clear()
    os.environ.update(what.environment)
    import_module("random").seed()
    words = list(what.words)
    while words[0] == "-W" or words[0] == "-u":
        if words.pop(0) == "-W":
            assert words.pop(0) == "error"
            warnings.simplefilter("error")
    reopen_streams()
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path[0] = what.folder
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path[0] = ""
        sys.modules["__main__"] = program = types.ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), program.__dict__)
    else:
        sys.argv = words
        sys.path[0] = str(Path(words[0]).parent)
        runpy.run_path(words[0], run_name="__main__")


def prepare() -> None:
    cli: Any = import_module("trunkline.cli")
    main = cli.main
    for name in IMPORTED:
        import_module(name)
    cli.main = main  # the function: importing the module of this name has replaced it
    assert settle(), "a fork has none of these threads"


def settle() -> bool:
    """Keep what was imported out of garbage collection. False if there are threads, which a fork would not have."""
    gc.collect()
    gc.freeze()
    return len(os.listdir("/proc/self/task")) == 1


if __name__ == "__main__":
    prepare()
    found = serve(int(sys.argv[1]), sys.argv[2:])
    if found is not None:
        run(found)
