"""How long does it take to execute `1+1` in a kernel, from the call to the result?"""

from __future__ import annotations

import time

from benchmarks.harness import Case, Sample
from benchmarks.kernels import RUNNING, one_kernel
from benchmarks.request import p50
from trunkline.jupyter import attach

INTERACTIVE = "execute_interactive"


async def ours(count: int) -> Sample:
    times: list[int] = []
    async with attach(RUNNING["manager"].connection_file) as kernel:
        for _ in range(count):
            began = time.perf_counter_ns()
            result = await kernel.run("1+1")
            times.append(time.perf_counter_ns() - began)
            assert result.text == "2"
    return p50(times)


def interactive(count: int) -> Sample:
    times: list[int] = []
    client = RUNNING["manager"].blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    said: list[str] = []

    def hear(message: dict[str, dict[str, dict[str, str]]]) -> None:
        if "data" in message["content"]:
            said.append(message["content"]["data"]["text/plain"])

    for _ in range(count):
        began = time.perf_counter_ns()
        client.execute_interactive("1+1", output_hook=hear)
        times.append(time.perf_counter_ns() - began)
    assert said == ["2"] * count
    client.stop_channels()
    return p50(times)


CASE = Case(
    name="jupyter-rtt",
    question="1+1 on a real kernel, from the call to the result, p50",
    unit="µs",
    better="less",
    ours=ours,
    peers={INTERACTIVE: interactive},
    target={INTERACTIVE: 1.0},
    around=one_kernel,
    size=20,
)
