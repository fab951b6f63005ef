"""Features for users of nbclient and papermill: output widgets, hooks, options, parameters."""

from __future__ import annotations

import json
from typing import Any

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trunkline as tl
from tests.jupyter.notebooks import (
    CAPTURED,
    HOOKED,
    PROGRESS,
    Execute,
    book,
    captured,
    execute,
    hooks,
    plain,
    record,
    recorded,
)
from trunkline.jupyter.parameters import inject, source
from trunkline.jupyter.terminal_text import coalesced, on_screen


def test_output_widgets_capture_as_in_nbclient(execute_here: Execute) -> None:
    ours = book(*CAPTURED)
    done = execute_here(ours)
    assert done.ok
    assert done.results[3].error is None, "the widget has the error"
    for cell in ours.cells[1:]:
        for output in cell.outputs:
            output.pop("execution_count", None)
    outputs, held = recorded()["captured"]
    for output in outputs:
        output.pop("execution_count", None)
    assert plain(ours) == outputs
    assert captured(ours) == held
    assert ours.cells[6].outputs[0]["data"]["text/plain"] == "[2, 1, 1, 1]"


def test_hooks_are_called_in_the_order_of_nbclient(execute_here: Execute) -> None:
    """With the same texts, and the whole reply of the kernel."""
    calls: list[Any] = []
    execute_here(book(*HOOKED), allow_errors=True, **hooks(calls))
    assert calls == recorded()["hooks"]


@pytest.mark.long
def test_the_recording_is_what_nbclient_does() -> None:
    assert json.loads(json.dumps(record())) == recorded()


def test_errors_are_allowed_by_name(execute_here: Execute) -> None:
    notebook = book("1/0", "'after'", "undefined", "'never'")
    done = execute_here(notebook, allow_error_names=["ZeroDivisionError"])
    assert (done.failed, done.skipped) == (3, 1)
    assert notebook.cells[2].outputs[0]["data"]["text/plain"] == "'after'"
    forced = book("1/0", "'never'", cell1=["raises-exception"])
    assert execute_here(forced, force_raise_errors=True, allow_errors=True).failed == 1


def test_cells_are_skipped_by_the_tag_that_is_asked_for(execute_here: Execute) -> None:
    notebook = book("1", "2", cell1=["slow"], cell2=["skip-execution"])
    done = execute_here(notebook, skip_cells_with_tag="slow")
    assert (sorted(done.results), notebook.cells[1].outputs) == ([2], [])


def test_a_cell_that_was_interrupted_after_its_time_fails_as_others_do() -> None:
    sources = ("import time; time.sleep(60)", "'after'")
    notebook = book(*sources)
    limits = lambda cell: 2.0 if "sleep" in cell.source else None  # noqa: E731
    assert execute(notebook, timeout_s=limits, interrupt_on_timeout=True, allow_errors=True).ok
    assert notebook.cells[1].outputs[-1].ename == "KeyboardInterrupt"
    assert notebook.cells[2].outputs[0]["data"]["text/plain"] == "'after'"
    ended = execute(book(*sources), timeout_s=limits, allow_errors=True)
    assert (ended.failed, ended.skipped) == (1, 1)


def test_what_a_cell_counts_to_have_raised_after_its_time(execute_here: Execute) -> None:
    """`error_on_timeout`, as nbclient has it: by that name it may be allowed, and hooks get it as the reply."""
    error = {"ename": "TooSlow", "evalue": "it took too long", "traceback": ["here"]}
    replies: list[Any] = []
    options: dict[str, Any] = {
        "timeout_s": lambda cell: 1.0 if "sleep" in cell.source else None,
        "interrupt_on_timeout": True,
        "error_on_timeout": error,
        "on_cell_error": lambda execute_reply, **_: replies.append(execute_reply),
    }
    notebook = book("import time; time.sleep(60)", "'after'")
    assert execute_here(notebook, allow_error_names=["TooSlow"], **options).ok
    assert notebook.cells[2].outputs[0]["data"]["text/plain"] == "'after'"
    (reply,) = replies
    assert reply["content"] == {**error, "status": "error"}
    assert execute_here(book("import time; time.sleep(60)", "'never'"), **options).failed == 1


def test_a_progress_bar_keeps_its_last_state(execute_here: Execute) -> None:
    notebook = book(*PROGRESS)
    assert execute_here(notebook, coalesce_streams=True).ok
    (output,) = notebook.cells[1].outputs
    assert output.text == " 299 " + "#" * 29 + "\ndone\n"
    assert plain(notebook) == recorded()["progress"]


def test_parameters_are_set_as_papermill_does(execute_here: Execute) -> None:
    notebook = book("rate = 1\nname = 'x'", "[rate, name, more]", cell1=["parameters"])
    done = execute_here(notebook, parameters={"rate": 0.5, "name": "it's\n", "more": {"a": [1, None, True]}})
    assert done.ok
    assert notebook.cells[2].metadata["tags"] == ["injected-parameters"]
    assert notebook.cells[2].source.startswith("# Parameters\nrate = 0.5\n")
    assert notebook.cells[3].outputs[0]["data"]["text/plain"] == "[0.5, \"it's\\n\", {'a': [1, None, True]}]"
    nbformat.validate(notebook)
    assert execute_here(notebook, parameters={"rate": 2, "name": "y", "more": 3}).ok
    assert (len(notebook.cells), notebook.cells[3].outputs[0]["data"]["text/plain"]) == (4, "[2, 'y', 3]")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_parameters_in_python_are_what_was_given(value: object) -> None:
    scope: dict[str, Any] = {}
    exec(source({"given": value}, "python"), scope)
    assert scope["given"] == value


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("R", '# Parameters\na = "x"\nb = list(1, TRUE)\nc = list("k" = NULL)'),
        ("julia", '# Parameters\na = "x"\nb = [1, true]\nc = Dict("k" => nothing)'),
        ("javascript", '// Parameters\nvar a = "x";\nvar b = [1, true];\nvar c = {"k": null};'),
        ("bash", "# Parameters\na='x'\nb='[1, true]'\nc='{\"k\": null}'"),
    ],
)
def test_parameters_in_other_languages(language: str, expected: str) -> None:
    assert source({"a": "x", "b": [1, True], "c": {"k": None}}, language) == expected


def test_parameters_that_cannot_be_written_say_so(execute_here: Execute) -> None:
    for parameters, language, why in (
        ({"a": object()}, "python", "of the type object"),
        ({"a b": 1}, "python", "is not a valid parameter name"),
        ({"a": 1}, "cobol", "not supported in cobol"),
        ({"a": float("nan")}, "r", "of the type float"),
    ):
        with pytest.raises(tl.UsageError, match=why):
            source(parameters, language)
    with pytest.raises(tl.UsageError, match="has no option timeout"):
        execute_here(book("1"), timeout=3)


def test_parameters_of_a_notebook_without_a_place_for_them_are_first() -> None:
    notebook = book("x")
    inject(notebook, {"x": 1}, "python")
    assert notebook.cells[0].source == "# Parameters\nx = 1"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a\rb", "b"),
        ("a\r\nb", "a\r\nb"),
        ("one\ra\nb\rc\n", "a\nc\n"),
        ("abc\b\bd", "ad"),
        ("10 %\r100 %\r", "100 %\r"),
        ("plain", "plain"),
    ],
)
def test_what_is_left_on_the_screen(text: str, left: str) -> None:
    assert on_screen(text) == left


def test_streams_are_one_output_each() -> None:
    def stream(name: str, text: str) -> dict[str, Any]:
        return {"output_type": "stream", "name": name, "text": text}

    shown = {"output_type": "display_data", "data": {}}
    outputs = [stream("stderr", "1"), stream("stdout", "2"), shown, stream("stderr", "3"), stream("stdout", "4")]
    assert coalesced(outputs) == [stream("stdout", "24"), stream("stderr", "13"), shown]
