"""The worker processes of the benchmarks: they run their task, report errors, and are never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import processes
from benchmarks.processes import Line, WorkerError, crew, results

DEADLINE_S = 90.0


def add(line: Line, left: int, right: int) -> tuple[int, int]:
    return left + right, os.getpid()


async def loop_of(line: Line) -> str:
    return type(asyncio.get_running_loop()).__module__


def until_stopped(line: Line) -> str:
    line.ready()
    line.stop.wait(DEADLINE_S)
    return "stopped" if line.stop.is_set() else "forgotten"


def fail(line: Line) -> None:
    raise ValueError("no good")


def end(line: Line) -> None:
    os._exit(3)


def spin(line: Line, seconds: float) -> None:
    line.ready()
    ends = time.process_time() + seconds
    while time.process_time() < ends:
        continue


def test_workers_run_one_piece_of_work_after_another_in_a_process_of_their_own() -> None:
    with crew(2).running() as workers:
        for worker in workers:
            worker.begin(add, 1, 2)
        assert [done.value for done in results(workers)] == [(3, worker.pid) for worker in workers]
        workers[0].begin(add, 3, right=4)
        assert workers[0].result().value == (7, workers[0].pid)
        assert os.getpid() not in [worker.pid for worker in workers]


def test_a_coroutine_runs_on_uvloop() -> None:
    with crew(1).running() as (worker,):
        worker.begin(loop_of)
        assert worker.result().value == "uvloop"


def test_work_says_that_it_is_ready_and_can_be_stopped() -> None:
    with crew(1).running() as (worker,):
        for _ in range(2):
            worker.begin(until_stopped)
            worker.ready()
            worker.stop()
            assert worker.result().value == "stopped"


def test_processor_time_counts_from_ready_on() -> None:
    with crew(1).running() as (worker,):
        worker.begin(spin, 0.05)
        assert 0.05 <= worker.result().cpu_s < 1.0


def test_who_waits_for_several_hears_at_once_of_the_one_that_failed() -> None:
    with crew(2).running() as (patient, hasty):
        patient.begin(until_stopped)
        hasty.begin(fail)
        with pytest.raises(WorkerError, match="no good"):
            results([patient, hasty])


def test_a_worker_that_ended_is_told() -> None:
    with crew(1).running() as (worker,):
        worker.begin(end)
        with pytest.raises(WorkerError, match="ended with 3"):
            worker.result()


def test_work_that_ends_before_it_is_ready_is_told() -> None:
    with crew(1).running() as (worker,):
        worker.begin(add, 1, 2)
        with pytest.raises(WorkerError, match="without a word"):
            worker.ready()


def test_a_worker_that_says_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SILENT_S", 0.05)
    with crew(1).running() as (worker,), pytest.raises(WorkerError, match="said nothing"):
        worker.result()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_workers_are_gone_after_the_block_however_it_ends_also_the_frozen(error: type[BaseException]) -> None:
    pids: list[int] = []

    def broken_off() -> None:
        with crew(2).running() as workers:
            pids.extend(worker.pid for worker in workers)
            workers[0].begin(until_stopped)
            workers[0].ready()
            workers[0].signal(signal.SIGSTOP)
            raise error

    with pytest.raises(error):
        broken_off()
    assert len(pids) == 2
    assert not any(_runs(pid) for pid in pids)


@pytest.mark.parametrize("frozen", [False, True])
def test_workers_ignore_ctrl_c_and_end_with_whoever_started_them(frozen: bool, tmp_path: Path) -> None:
    program = (
        "import time\n"
        "from benchmarks.processes import crew\n"
        "from tests.test_benchmark_processes import until_stopped\n"
        "with crew(1).running() as (worker,):\n"
        "    worker.begin(until_stopped)\n"
        "    worker.ready()\n"
        "    print(worker.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    root = Path(processes.__file__).parent.parent
    # A starter that is killed leaves its directory.
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        os.kill(pid, signal.SIGINT)
        assert _runs(pid)
        if frozen:
            os.kill(pid, signal.SIGSTOP)
        starter.kill()
    deadline = time.monotonic() + DEADLINE_S
    while _runs(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
