"""Widgets in a running notebook: their state in the format of notebooks, and the output that output widgets capture."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Mapping
from typing import Any, Final, Self

from trunkline.errors import TrunklineError
from trunkline.jupyter.kernel import Kernel
from trunkline.jupyter.outputs import Outputs
from trunkline.jupyter.wire import KernelMessage

log = logging.getLogger("trunkline.jupyter")

MIME: Final = "application/vnd.jupyter.widget-state+json"
TARGET: Final = "jupyter.widget"
OUTPUT: Final = ("@jupyter-widgets/output", "OutputModel")


class OutputWidget:
    """Captures the output of an execution while the kernel requests it: `with output:` sets the id of the request.

    The captured output is sent to the kernel, because there is no browser that would do this.
    """

    def __init__(self, comm_id: str, kernel: Kernel, state: dict[str, Any]) -> None:
        self._comm_id = comm_id
        self._kernel = kernel
        self._state = state
        self._captured: str | None = None
        self._sending: asyncio.Task[None] | None = None
        self.outputs = Outputs(kernel.settings.max_output_bytes, on_change=self._changed)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Begin or end capturing, if the update requests it."""
        if "msg_id" not in state:
            return
        if self._captured is not None:
            self._kernel.router.release(self._captured, self.outputs)
        self._captured = str(state["msg_id"] or "") or None
        if self._captured is not None:
            self._kernel.router.capture(self._captured, self.outputs)

    def _changed(self) -> None:
        self._state["outputs"] = self.outputs.snapshot()
        if self._sending is None:
            # One update for all outputs that arrived in one iteration of the event loop.
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        await asyncio.sleep(0)
        self._sending = None
        data = {"method": "update", "state": {"outputs": self._state["outputs"]}, "buffer_paths": []}
        try:
            await self._kernel.client.post("shell", "comm_msg", {"comm_id": self._comm_id, "data": data})
        except TrunklineError as error:
            log.info("the captured output of a widget could not be sent to the kernel %s: %s", self._kernel.id, error)

    async def settle(self) -> None:
        """Return when all updates were sent to the kernel."""
        if self._sending is not None:
            await self._sending

    def close(self) -> None:
        if self._captured is not None:
            self._kernel.router.release(self._captured, self.outputs)


class WidgetStates:
    """Listens to all comms of a kernel while it is open."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._comms = kernel.router.comms
        self._states: dict[str, dict[str, Any]] = {}
        self._buffers: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {}
        self._outputs: dict[str, OutputWidget] = {}

    def __enter__(self) -> Self:
        self._comms.observers.append(self.take)
        return self

    def __exit__(self, *_: object) -> None:
        self._comms.observers.remove(self.take)
        for widget in self._outputs.values():
            widget.close()

    @property
    def capture(self) -> bool:
        """Whether there are widgets that capture output."""
        return bool(self._outputs)

    async def settle(self) -> None:
        """Return when the captured output was sent to the kernel."""
        for widget in self._outputs.values():
            await widget.settle()

    def take(self, message: KernelMessage) -> None:
        content = message.content
        comm_id = str(content.get("comm_id", ""))
        data = content.get("data")
        if not isinstance(data, dict):
            return
        state = data.get("state")
        if message.header.msg_type == "comm_open" and content.get("target_name") == TARGET:
            self._states[comm_id] = {}
            self._update(comm_id, data, message)
            if isinstance(state, dict) and (state.get("_model_module"), state.get("_model_name")) == OUTPUT:
                self._outputs[comm_id] = OutputWidget(comm_id, self._kernel, self._states[comm_id])
        elif comm_id in self._states and data.get("method") in ("update", "echo_update"):
            self._update(comm_id, data, message)
        else:
            return
        if comm_id in self._outputs and isinstance(state, dict):
            self._outputs[comm_id].set_state(state)

    def _update(self, comm_id: str, data: Mapping[str, Any], message: KernelMessage) -> None:
        state = data.get("state")
        if isinstance(state, dict):
            if comm_id in self._outputs and data.get("method") == "echo_update":
                # The kernel echoes the update. More may have been captured since.
                state = {name: value for name, value in state.items() if name != "outputs"}
            self._states[comm_id].update(state)
        paths = data.get("buffer_paths")
        if isinstance(paths, list):
            kept = self._buffers.setdefault(comm_id, {})
            for path, buffer in zip(paths, message.buffers, strict=False):
                coded = base64.b64encode(buffer).decode()
                kept[tuple(path)] = {"encoding": "base64", "data": coded, "path": path}

    def put_into(self, metadata: Any) -> None:
        """Store the state of widgets in the metadata of a notebook. Does nothing if there are no widgets."""
        if not self._states:
            return
        entries = {}
        for comm_id, state in self._states.items():
            entries[comm_id] = {
                "model_name": state.get("_model_name"),
                "model_module": state.get("_model_module"),
                "model_module_version": state.get("_model_module_version", ""),
                "state": state,
            }
            if self._buffers.get(comm_id):
                entries[comm_id]["buffers"] = list(self._buffers[comm_id].values())
        metadata.setdefault("widgets", {})[MIME] = {"state": entries, "version_major": 2, "version_minor": 0}
