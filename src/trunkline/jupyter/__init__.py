"""Jupyter kernels on the bus: every message of a kernel reaches the request it belongs to."""

import importlib
import typing

if typing.TYPE_CHECKING:
    from trunkline.jupyter.blocking import BlockingComm as BlockingComm
    from trunkline.jupyter.blocking import BlockingExecution as BlockingExecution
    from trunkline.jupyter.blocking import BlockingKernel as BlockingKernel
    from trunkline.jupyter.blocking import attach_blocking as attach_blocking
    from trunkline.jupyter.blocking import join_blocking as join_blocking
    from trunkline.jupyter.blocking import start_kernel_blocking as start_kernel_blocking
    from trunkline.jupyter.comm import Comm as Comm
    from trunkline.jupyter.errors import ExecutionTimeout as ExecutionTimeout
    from trunkline.jupyter.errors import WrongKernelKey as WrongKernelKey
    from trunkline.jupyter.execution import Execution as Execution
    from trunkline.jupyter.kernel import Kernel as Kernel
    from trunkline.jupyter.kernel import KernelStats as KernelStats
    from trunkline.jupyter.launch import LaunchOptions as LaunchOptions
    from trunkline.jupyter.metrics import Tracing as Tracing
    from trunkline.jupyter.metrics import export as export
    from trunkline.jupyter.notebook import NotebookRun as NotebookRun
    from trunkline.jupyter.notebook import read_notebook as read_notebook
    from trunkline.jupyter.notebook import run_notebook as run_notebook
    from trunkline.jupyter.notebook import write_notebook as write_notebook
    from trunkline.jupyter.notebook_options import NotebookOptions as NotebookOptions
    from trunkline.jupyter.presence import SharedKernel as SharedKernel
    from trunkline.jupyter.presence import shared_kernels as shared_kernels
    from trunkline.jupyter.result import CodeFailure as CodeFailure
    from trunkline.jupyter.result import Result as Result
    from trunkline.jupyter.result import Timings as Timings
    from trunkline.jupyter.server import JupyterServer as JupyterServer
    from trunkline.jupyter.server import RemoteKernel as RemoteKernel
    from trunkline.jupyter.settings import KernelSettings as KernelSettings
    from trunkline.jupyter.start import attach as attach
    from trunkline.jupyter.start import join as join
    from trunkline.jupyter.start import start_kernel as start_kernel
    from trunkline.jupyter.wire import KernelMessage as KernelMessage

# Imported on first use: running a notebook needs no bus, and joining a kernel needs no jupyter_client.
_NAMES = {
    "blocking": "BlockingComm BlockingExecution BlockingKernel attach_blocking join_blocking start_kernel_blocking",
    "comm": "Comm",
    "errors": "ExecutionTimeout WrongKernelKey",
    "execution": "Execution",
    "kernel": "Kernel KernelStats",
    "launch": "LaunchOptions",
    "metrics": "Tracing export",
    "notebook": "NotebookRun read_notebook run_notebook write_notebook",
    "notebook_options": "NotebookOptions",
    "presence": "SharedKernel shared_kernels",
    "result": "CodeFailure Result Timings",
    "server": "JupyterServer RemoteKernel",
    "settings": "KernelSettings",
    "start": "attach join start_kernel",
    "wire": "KernelMessage",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> typing.Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
