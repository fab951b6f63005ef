"""Output widgets: captured output is kept, whatever the kernel repeats of it."""

from __future__ import annotations

from typing import Any

from tests.jupyter.scenes import of, play
from tests.jupyter.scripted import ScriptedLink
from trunkline.jupyter.execution import Execution
from trunkline.jupyter.kernel import Kernel
from trunkline.jupyter.widgets import MIME, OUTPUT, TARGET, WidgetStates


def test_an_echo_of_less_does_not_replace_what_was_captured() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        def say(msg_type: str, content: dict[str, Any]) -> None:
            link.say("iopub", msg_type, content, of(kernel, execution))

        def update(method: str, **state: Any) -> None:
            say("comm_msg", {"comm_id": "c", "data": {"method": method, "state": state}})

        with WidgetStates(kernel) as states:
            model = dict(zip(("_model_module", "_model_name"), OUTPUT, strict=True))
            say("comm_open", {"comm_id": "c", "target_name": TARGET, "data": {"state": {**model, "outputs": []}}})
            update("update", msg_id=execution.id)
            say("stream", {"name": "stdout", "text": "first\n"})
            early = kept(states)
            say("stream", {"name": "stdout", "text": "second\n"})
            update("echo_update", outputs=early, layout="wide")
            update("update", msg_id="")
            await states.settle()
            assert [output["text"] for output in kept(states)] == ["first\nsecond\n"]
            assert state_of(states)["layout"] == "wide"
            update("update", outputs=[])
            assert kept(states) == [], "who changes it without being told means it"

    play(scene)


def state_of(states: WidgetStates) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    states.put_into(metadata)
    found: dict[str, Any] = metadata["widgets"][MIME]["state"]["c"]["state"]
    return found


def kept(states: WidgetStates) -> list[dict[str, Any]]:
    return list(state_of(states)["outputs"])
