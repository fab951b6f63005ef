"""The result of an execution, which says whether it is complete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from trunkline.jupyter.errors import ExecutionFailed
from trunkline.jupyter.outputs import Output

IDLE = "the idle status"
REPLY = "the execute_reply"


class CodeFailure(msgspec.Struct, frozen=True):
    """The error that the code raised."""

    ename: str
    evalue: str
    traceback: tuple[str, ...]

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> CodeFailure:
        """Read the error from the kernel's message."""
        trace = content.get("traceback")
        lines = tuple(str(line) for line in trace) if isinstance(trace, list) else ()
        return cls(str(content.get("ename", "")), str(content.get("evalue", "")), lines)

    def __str__(self) -> str:
        return f"{self.ename}: {self.evalue}" if self.evalue else self.ename


class Timings(msgspec.Struct, frozen=True):
    """Times in seconds after the request was sent; None for events that have not happened."""

    started_s: float | None
    replied_s: float | None
    idle_s: float | None
    complete_s: float | None


class Result(msgspec.Struct, frozen=True):
    """The result of an execution so far.

    It is complete when the kernel has replied and is idle again; otherwise `missing` names what has not arrived.
    `outputs` has the format of a notebook. `status` is that of the reply: `ok`, `error`, `aborted`, `open`.
    """

    id: str
    code: str
    status: str
    complete: bool
    missing: tuple[str, ...]
    execution_count: int | None
    outputs: tuple[Output, ...]
    error: CodeFailure | None
    timings: Timings
    user_expressions: dict[str, Any]
    payload: tuple[dict[str, Any], ...]
    dropped: int
    """Messages that were dropped because channels were not read. The outputs here include them."""
    truncated: int
    """Bytes of output that were not kept."""
    late: int
    """The number of messages after completion."""
    lost: bool = False
    """Whether the missing parts were lost: the kernel has already answered a later request."""

    @property
    def ok(self) -> bool:
        return self.complete and self.status == "ok"

    @property
    def stdout(self) -> str:
        return self._text("stdout")

    @property
    def stderr(self) -> str:
        return self._text("stderr")

    @property
    def streams(self) -> dict[str, str]:
        names = {output["name"] for output in self.outputs if output["output_type"] == "stream"}
        return {name: self._text(name) for name in sorted(names)}

    @property
    def displays(self) -> tuple[Output, ...]:
        """The displays, without the result."""
        return tuple(output for output in self.outputs if output["output_type"] == "display_data")

    @property
    def data(self) -> dict[str, Any]:
        """The value of the last expression, by format; empty if there was none."""
        results = [output for output in self.outputs if output["output_type"] == "execute_result"]
        return dict(results[-1]["data"]) if results else {}

    @property
    def text(self) -> str | None:
        """The value of the last expression as text; None if there was none."""
        found = self.data.get("text/plain")
        return "".join(found) if isinstance(found, list) else found

    def check(self) -> Result:
        """This result, if it is complete and without an error; raises ExecutionFailed otherwise."""
        if not self.ok:
            raise ExecutionFailed(self.id, self._why(), self)
        return self

    def _why(self) -> str:
        if not self.complete:
            return f"not complete: {' and '.join(self.missing)} did not arrive"
        return str(self.error) if self.error is not None else f"the kernel replied with status {self.status!r}"

    def _text(self, name: str) -> str:
        streams = (output for output in self.outputs if output["output_type"] == "stream")
        return "".join(output["text"] for output in streams if output["name"] == name)
