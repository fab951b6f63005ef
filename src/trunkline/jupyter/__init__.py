"""Jupyter kernels on the bus: every message of a kernel reaches the request it belongs to."""

from trunkline.jupyter.blocking import BlockingComm as BlockingComm
from trunkline.jupyter.blocking import BlockingExecution as BlockingExecution
from trunkline.jupyter.blocking import BlockingKernel as BlockingKernel
from trunkline.jupyter.blocking import attach_blocking as attach_blocking
from trunkline.jupyter.blocking import join_blocking as join_blocking
from trunkline.jupyter.blocking import start_kernel_blocking as start_kernel_blocking
from trunkline.jupyter.comm import Comm as Comm
from trunkline.jupyter.execution import Execution as Execution
from trunkline.jupyter.kernel import Kernel as Kernel
from trunkline.jupyter.kernel import KernelStats as KernelStats
from trunkline.jupyter.metrics import Tracing as Tracing
from trunkline.jupyter.metrics import export as export
from trunkline.jupyter.notebook import NotebookRun as NotebookRun
from trunkline.jupyter.notebook import read_notebook as read_notebook
from trunkline.jupyter.notebook import run_notebook as run_notebook
from trunkline.jupyter.notebook import write_notebook as write_notebook
from trunkline.jupyter.result import CodeFailure as CodeFailure
from trunkline.jupyter.result import Result as Result
from trunkline.jupyter.result import Timings as Timings
from trunkline.jupyter.settings import KernelSettings as KernelSettings
from trunkline.jupyter.start import attach as attach
from trunkline.jupyter.start import join as join
from trunkline.jupyter.start import start_kernel as start_kernel
from trunkline.jupyter.wire import KernelMessage as KernelMessage
