"""The checks of `jupyter_kernel_test`, run through our client instead of jupyter_client."""

from __future__ import annotations

from queue import Empty
from typing import Any, ClassVar

import jupyter_kernel_test
import msgspec
import pytest
from jupyter_kernel_test import validate_message

import trunkline as tl
from trunkline.bus.blocking import BlockingStream
from trunkline.jupyter import BlockingKernel, KernelMessage, start_kernel_blocking

PATIENCE_S = 60.0


def as_jupyter(message: KernelMessage) -> dict[str, Any]:
    header = msgspec.to_builtins(message.header)
    return {
        "header": header,
        "msg_id": message.header.msg_id,
        "msg_type": message.header.msg_type,
        "parent_header": msgspec.to_builtins(message.parent) if message.parent.msg_id else {},
        "metadata": dict(message.metadata),
        "content": dict(message.content),
        "buffers": list(message.buffers),
    }


@pytest.fixture(autouse=True)
def leaves_nothing() -> None:
    """A kernel serves a whole class here: sockets to it may be opened during any test."""


class Channel:
    def __init__(self, stream: BlockingStream) -> None:
        self._stream = stream

    def get_msg(self, timeout: float | None = None) -> dict[str, Any]:
        try:
            message = self._stream.recv(timeout)
        except tl.StreamEmpty:
            raise Empty from None
        assert isinstance(message, KernelMessage)
        return as_jupyter(message)


class Client:
    """The part of jupyter_client's client that the suite needs, on ours."""

    def __init__(self, kernel: BlockingKernel) -> None:
        self._kernel = kernel
        self._streams = [kernel.subscribe(f"kernel.*.{socket}.>") for socket in ("iopub", "shell")]
        self.iopub_channel, self.shell_channel = map(Channel, self._streams)

    def get_shell_msg(self, timeout: float | None = None) -> dict[str, Any]:
        return self.shell_channel.get_msg(timeout)

    def execute(self, code: str, **options: Any) -> str:
        return self._kernel.execute(code, **options).id

    def kernel_info(self) -> str:
        return self._id("kernel_info_request")

    def complete(self, code: str, cursor_pos: int | None = None) -> str:
        return self._id("complete_request", code=code, cursor_pos=len(code) if cursor_pos is None else cursor_pos)

    def is_complete(self, code: str) -> str:
        return self._id("is_complete_request", code=code)

    def inspect(self, code: str, cursor_pos: int | None = None, detail_level: int = 0) -> str:
        place = len(code) if cursor_pos is None else cursor_pos
        return self._id("inspect_request", code=code, cursor_pos=place, detail_level=detail_level)

    def history(self, **how: Any) -> str:
        how = {"raw": True, "output": False, **how}
        if how.get("hist_access_type") == "range":
            how.setdefault("session", 0)
            how.setdefault("start", 0)
        return self._id("history_request", **how)

    def clear_buffer(self) -> None:
        return

    def _id(self, msg_type: str, **content: Any) -> str:
        """Send a request, and return its id. The reply is read from the channel."""
        with self._kernel.subscribe("kernel.*.shell.>") as replies:
            self._kernel.ask(msg_type, content)
            reply = replies.recv(10)
        assert isinstance(reply, KernelMessage)
        return reply.parent.msg_id

    def stop_channels(self) -> None:
        for stream in self._streams:
            stream.close()
        self._kernel.close()


class ThroughOurs(jupyter_kernel_test.KernelTests):  # type: ignore[misc]
    __test__ = False
    kc: Any
    prints_when_idle = False

    @classmethod
    def setUpClass(cls) -> None:
        cls.kc = Client(start_kernel_blocking(cls.kernel_name))

    @classmethod
    def tearDownClass(cls) -> None:
        cls.kc.stop_channels()

    def execute_helper(
        self, code: str, timeout: float = PATIENCE_S, **options: Any
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """As the suite has it, but it waits for messages instead of a tenth of a second, and only for its own."""
        msg_id = self.kc.execute(code, **options)
        reply: dict[str, Any] = self.get_non_kernel_info_reply(timeout=timeout)
        validate_message(reply, "execute_reply", msg_id)
        states: list[str] = []
        outputs: list[dict[str, Any]] = []
        while states != ["busy", "idle"] or (self.prints_when_idle and not outputs):
            message = self.kc.iopub_channel.get_msg(timeout)
            if message["parent_header"].get("msg_id") != msg_id:
                continue
            validate_message(message, message["msg_type"], msg_id)
            if message["msg_type"] == "status":
                states.append(message["content"]["execution_state"])
            elif message["msg_type"] == "execute_input":
                assert message["content"]["code"] == code
            else:
                assert states == ["busy"] or self.prints_when_idle
                outputs.append(message)
        return reply, outputs


class TestPython(ThroughOurs):
    __test__ = True
    kernel_name = "python3"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples: ClassVar = [{"text": "zi", "matches": {"zip"}}]
    complete_code_samples: ClassVar = ["1", "print('hello, world')", "def f(x):\n  return x*2\n\n\n"]
    incomplete_code_samples: ClassVar = ["print('''hello", "def f(x):\n  x*2"]
    invalid_code_samples: ClassVar = ["import = 7q"]
    code_page_something = "zip?"
    code_generate_error = "raise"
    code_execute_result: ClassVar = [
        {"code": "1+2+3", "result": "6"},
        {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"},
    ]
    code_display_data: ClassVar = [
        {"code": "from IPython.display import HTML, display; display(HTML('<b>x</b>'))", "mime": "text/html"}
    ]
    code_history_pattern = "1?2*"
    # By range, ipykernel fails with any client: it gives the session another number.
    supported_history_operations = ("tail", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"


class TestDeno(ThroughOurs):
    """Without what the suite expects before the idle status: Deno sends one output in ten after it, to any client.

    `test_deno_is_a_kernel_like_any` has the outputs.
    """

    __test__ = True
    kernel_name = "deno"
    # It may send output after its idle status.
    prints_when_idle = True
    language_name = "typescript"
    file_extension = ".ts"
    code_generate_error = "throw new Error('no')"
