"""The state of widgets, as notebooks keep it: so that they can be seen when no kernel runs any more."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final, Self

from trunkline.jupyter.kernel import Kernel
from trunkline.jupyter.wire import KernelMessage

MIME: Final = "application/vnd.jupyter.widget-state+json"
TARGET: Final = "jupyter.widget"


class WidgetStates:
    """Listens to all comms of a kernel while it is open."""

    def __init__(self, kernel: Kernel) -> None:
        self._comms = kernel.router.comms
        self._states: dict[str, dict[str, Any]] = {}
        self._buffers: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {}

    def __enter__(self) -> Self:
        self._comms.observers.append(self.take)
        return self

    def __exit__(self, *_: object) -> None:
        self._comms.observers.remove(self.take)

    def take(self, message: KernelMessage) -> None:
        content = message.content
        comm_id = str(content.get("comm_id", ""))
        data = content.get("data")
        if not isinstance(data, dict):
            return
        if message.header.msg_type == "comm_open" and content.get("target_name") == TARGET:
            self._states[comm_id] = {}
            self._update(comm_id, data, message)
        elif comm_id in self._states and data.get("method") in ("update", "echo_update"):
            self._update(comm_id, data, message)

    def _update(self, comm_id: str, data: Mapping[str, Any], message: KernelMessage) -> None:
        state = data.get("state")
        if isinstance(state, dict):
            self._states[comm_id].update(state)
        paths = data.get("buffer_paths")
        if isinstance(paths, list):
            kept = self._buffers.setdefault(comm_id, {})
            for path, buffer in zip(paths, message.buffers, strict=False):
                coded = base64.b64encode(buffer).decode()
                kept[tuple(path)] = {"encoding": "base64", "data": coded, "path": path}

    def put_into(self, metadata: Any) -> None:
        """As the metadata of a notebook has it; nothing if there are no widgets."""
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
            if comm_id in self._buffers:
                entries[comm_id]["buffers"] = list(self._buffers[comm_id].values())
        metadata.setdefault("widgets", {})[MIME] = {"state": entries, "version_major": 2, "version_minor": 0}
