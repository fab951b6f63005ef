"""Outputs as in notebooks: of too much output, the beginning and the end are kept, with a note on the rest."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jupyter.scenes import of, play
from tests.jupyter.scripted import ScriptedLink
from trunkline.jupyter import Execution, Kernel
from trunkline.jupyter.outputs import Outputs, size_of


def texts(outputs: Outputs, name: str = "stdout") -> str:
    return "".join(output["text"] for output in outputs.snapshot() if output.get("name") == name)


def test_one_large_write_keeps_its_beginning_and_its_end() -> None:
    outputs = Outputs(64 * 1024 * 1024)
    text = "begin " + "x" * 70_000_000 + " end"
    outputs.write("stdout", text)
    kept = texts(outputs)
    assert kept.startswith("begin xxx")
    assert kept.endswith("xxx end")
    missing = len(text) - 64 * 1024 * 1024
    assert (len(kept), outputs.truncated) == (64 * 1024 * 1024, missing)
    assert f"[{missing:,} bytes of output were left out here" in texts(outputs, "stderr")


def test_many_small_writes_do_too() -> None:
    outputs = Outputs(1000)
    for number in range(1000):
        outputs.write("stdout", f"{number:04}\n")
    lines = texts(outputs).splitlines()
    assert (lines[0], lines[-1]) == ("0000", "0999")
    assert (outputs.bytes, outputs.truncated) == (1000, 4000)


def test_output_beyond_the_limit_is_counted() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        shown = {"data": {"text/plain": "shown"}, "metadata": {}, "transient": {"display_id": "d"}}
        for number in range(5):
            link.say("iopub", "stream", {"name": "stdout", "text": str(number) * 1000}, of(kernel, execution))
        link.say("iopub", "display_data", shown, of(kernel, execution))
        changed: dict[str, Any] = {**shown, "data": {"text/plain": "changed"}}
        link.say("iopub", "update_display_data", changed, of(kernel, execution))
        result = execution.partial()
        assert result.stdout.startswith("0" * 1000)
        assert result.truncated > 2000
        assert "bytes of output were left out here" in result.stderr
        assert result.displays[0]["data"] == {"text/plain": "changed"}
        link.say("iopub", "clear_output", {"wait": False}, of(kernel, execution))
        assert execution.partial().outputs == ()

    play(scene, max_output_bytes=3000)


@given(
    st.integers(1, 200),
    st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.text(st.characters(codec="utf-8"), max_size=60))),
)
def test_whatever_is_written_is_kept_or_counted(limit: int, writes: list[tuple[str, str]]) -> None:
    outputs = Outputs(limit)
    for name, text in writes:
        outputs.write(name, text)
    total = sum(size_of(text) for _, text in writes)
    assert outputs.bytes + outputs.truncated == total
    assert outputs.bytes <= limit
    assert sum(entry.size for entry in outputs) == outputs.bytes
    if total <= limit:
        for stream in ("stdout", "stderr"):
            assert texts(outputs, stream) == "".join(text for name, text in writes if name == stream)


@pytest.mark.parametrize("text", ["é" * 1000, "a" + "😀" * 500])
def test_characters_are_not_cut_in_the_middle(text: str) -> None:
    outputs = Outputs(101)
    outputs.write("stdout", text)
    assert set(texts(outputs)) <= set(text)
    assert outputs.bytes <= 101
