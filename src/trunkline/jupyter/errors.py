"""Errors of kernels. `trunkline/errors.py` shows their place in the tree."""

from __future__ import annotations

from typing import Any

from trunkline.errors import Closed, TrunklineError


class KernelError(TrunklineError):
    def __init__(self, text: str, kernel_id: str, result: Any = None) -> None:
        super().__init__(text)
        self.kernel_id = kernel_id
        self.result = result
        """The result so far, if an execution was running."""


class KernelNotStarted(KernelError):
    """`died` says whether the process ended before the kernel answered. Then another start may succeed."""

    def __init__(self, text: str, kernel_id: str, *, died: bool = False) -> None:
        super().__init__(text, kernel_id)
        self.died = died


class WrongKernelKey(KernelNotStarted):
    """The kernel runs, but signs its messages with another key than that in the connection file."""


class KernelDied(KernelError):
    def __init__(self, kernel_id: str, how: str, result: Any = None) -> None:
        super().__init__(f"the kernel {kernel_id} died: {how}", kernel_id, result)
        self.how = how


class KernelRestarted(KernelError):
    def __init__(self, kernel_id: str, result: Any = None) -> None:
        super().__init__(f"the kernel {kernel_id} was restarted: its executions were ended", kernel_id, result)


class ExecutionFailed(KernelError):
    """Raised by `result.check()`: the error of the code is in `result.error`."""

    def __init__(self, request_id: str, why: str, result: Any) -> None:
        super().__init__(why, "", result)
        self.request_id = request_id


class ExecutionTimeout(KernelError):
    """Raised if `raise_on_timeout` is set. `result` has what arrived so far."""

    def __init__(self, request_id: str, waited_s: float, result: Any) -> None:
        missing = " and ".join(result.missing) if result is not None else "its end"
        super().__init__(f"not complete after {waited_s:.1f} s: {missing} did not arrive", "", result)
        self.request_id = request_id
        self.waited_s = waited_s


class KernelClosed(Closed):
    def __init__(self, kernel_id: str) -> None:
        super().__init__(f"the client of kernel {kernel_id} is closed: attach to it again, or start another")
        self.kernel_id = kernel_id
