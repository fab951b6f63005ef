"""The documents are correct: their code runs, their links work, their tables match the code."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import msgspec
import pytest

import trunkline as tl
from trunkline import errors
from trunkline.actors.message_fates import CellState
from trunkline.cli.journal import app as journal_app
from trunkline.cli.main import run as run_command
from trunkline.errors import MissingExtra
from trunkline.expression import translation
from trunkline.journal import JournalSettings, Retention, database, layout
from trunkline.memory.settings import ChannelSettings
from trunkline.settings import Group

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
WITHOUT_CODE = {"tables.md", "benchmarks.md", "tutorial.md"}
"""test_tutorial.py follows the tutorial."""
GENERATED = {"docs/examples/index.md"}
"""Pages that are made when the site is built: test_site.py looks at their links."""
WITH_CODE = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in WITHOUT_CODE),
]
CONTINUES = "<!-- continues -->"

CONSOLE = re.compile(r"^```console\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(rf"^(?P<mark>{CONTINUES}\n+)?```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
SOURCE = re.compile(r"`((?:[\w-]+/)*[\w-]+\.py)`")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def programs(path: Path) -> Iterator[tuple[int, list[CodeType]]]:
    """The line a program begins at, and its blocks: one, and those that continue it."""
    text = path.read_text()
    begun, blocks = 0, list[CodeType]()
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start("code"))
        # Lines count as in the document, so that a traceback points there.
        source = "\n" * line + block["code"]
        code = compile(source, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if block["mark"] is None:
            if blocks:
                yield begun, blocks
            begun, blocks = line + 1, []
        blocks.append(code)
    if blocks:
        yield begun, blocks


ON_SPARK = ROOT / "docs/pipeline.md"
"""tests/spark/test_pipeline_document.py runs its programs, where a session is."""
PROGRAMS = [
    pytest.param(blocks, id=f"{name_of(path)}:{line}")
    for path in WITH_CODE
    if path != ON_SPARK
    for line, blocks in programs(path)
]


@pytest.mark.parametrize("blocks", PROGRAMS)
def test_code_runs(blocks: list[CodeType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        execute(blocks)
    except MissingExtra as error:
        # The engine of shared memory is not there for every platform.
        if error.extra != "memory":
            raise
        pytest.skip(str(error))


def execute(blocks: list[CodeType]) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}

    async def run() -> None:
        for block in blocks:
            result = eval(block, names)
            if inspect.iscoroutine(result):
                await result

    if any(block.co_flags & inspect.CO_COROUTINE for block in blocks):
        asyncio.run(run())
    else:
        for block in blocks:
            exec(block, names)


# Sessions on the command line: a console block is run after the program before it, in the same directory


def sessions(path: Path) -> Iterator[tuple[int, list[CodeType], str]]:
    """The line a session begins at, the program before it, and the session."""
    text = path.read_text()
    for console in CONSOLE.finditer(text):
        line = text.count("\n", 0, console.start()) + 1
        *_, program = (blocks for begun, blocks in programs(path) if begun < line)
        yield line, program, console["text"]


SESSIONS = [
    pytest.param(program, session, id=f"{name_of(path)}:{line}")
    for path in WITH_CODE
    for line, program, session in sessions(path)
]


@pytest.mark.parametrize(("program", "session"), SESSIONS)
def test_sessions_show_what_is_to_be_seen(
    program: list[CodeType],
    session: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    execute(program)
    for shown in session.split("$ ")[1:]:
        command, _, wanted = shown.partition("\n")
        words = shlex.split(command)
        assert words.pop(0) == "trunkline"
        capsys.readouterr()
        run_command(words)
        assert plain(capsys.readouterr().out) == plain(wanted), command


def plain(output: str) -> list[str]:
    """Lines without values that differ between runs: ids, times, days, sizes, and the widths that depend on them."""
    output = re.sub(r"[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}", "UUID", output)
    output = re.sub(r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d\.\d{3}Z)?", "TIME", output)
    output = re.sub(r"[\d.,]+ (bytes|KiB|MiB)", "SIZE", output)
    return [" ".join(line.split()) for line in output.splitlines() if line.strip()]


def test_there_is_code_in_the_documents() -> None:
    for path in WITH_CODE:
        assert any(programs(path)), f"{name_of(path)} shows no code"
        text = path.read_text()
        assert text.count("```python") == len(BLOCK.findall(text)), f"{name_of(path)} has a block that is not run"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    for target in LINK.findall(path.read_text()):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        if name_of(linked) in GENERATED:
            continue
        assert linked.exists(), f"{name_of(path)} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors(linked), f"{name_of(path)} links to {target}: no such heading"


def anchors(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_source_files_that_are_named_exist(path: Path) -> None:
    for file in SOURCE.findall(path.read_text()):
        assert (ROOT / file).exists() or (ROOT / "src/trunkline" / file).exists(), f"{name_of(path)} names {file}"


# Tables


def table(path: str, header: str) -> list[list[str]]:
    """The rows of the table under this header line, without their backticks."""
    lines = iter((ROOT / path).read_text().splitlines())
    assert header in lines, f"{path} has no table {header}"
    rows: list[list[str]] = []
    for line in list(lines)[1:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in line.strip("|").split(" | ")])
    return rows


def flat(group: Group, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name in group.__struct_fields__:
        value = getattr(group, name)
        if isinstance(value, Group):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def test_settings_table() -> None:
    rows = table("docs/guide.md", "| setting | default | environment variable | what it does |")
    known = dict(flat(tl.Settings()))
    assert [row[0] for row in rows] == list(known)
    for name, default, variable, _ in rows:
        assert default == str(known[name]), name
        assert variable == "TRUNKLINE_" + name.upper().replace(".", "__")
        assert tl.Settings.load(environ={variable: default.lower()}) == tl.Settings()


def test_journal_settings_tables() -> None:
    for header, group in (
        ("| setting | default | what it does |", JournalSettings()),
        ("| rule | default | what it does |", Retention()),
    ):
        rows = table("docs/journal.md", header)
        assert [(name, default) for name, default, _ in rows] == [(name, str(value)) for name, value in flat(group)]


def test_memory_settings_table() -> None:
    rows = table("docs/memory.md", "| setting | default | what it does |")
    expected = [(name, str(value) or '""') for name, value in flat(ChannelSettings())]
    assert [(name, default) for name, default, _ in rows] == expected


def test_journal_layout_tables() -> None:
    assert f"layout version {layout.LAYOUT}" in (ROOT / "docs/journal.md").read_text()
    for kind, schema in (("messages", layout.MESSAGES), ("fates", layout.FATES)):
        rows = table("docs/journal.md", f"| column of {kind} | type | may be null | what it holds |")
        assert [(name, kind) for name, kind, _, _ in rows] == [(field.name, str(field.type)) for field in schema]
    # Null are those fields of a message that may be None.
    nullable = {field.name for field in msgspec.structs.fields(tl.Message) if field.default is None}
    rows = table("docs/journal.md", "| column of messages | type | may be null | what it holds |")
    assert {name for name, _, null, _ in rows if null == "yes"} == nullable


def test_journal_tables_table() -> None:
    rows = table("docs/journal.md", "| table | a row is |")
    made = " ".join(path.read_text() for path in sorted((ROOT / "src/trunkline/journal").glob("*.py")))
    assert {row[0] for row in rows} == set(re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)", made))
    assert f"`user_version` is {database.VERSION}" in (ROOT / "docs/journal.md").read_text()


def test_journal_commands_table() -> None:
    rows = table("docs/journal.md", "| command | does |")
    commands = [command.callback.__name__ for command in journal_app.registered_commands if command.callback]
    assert [row[0] for row in rows] == commands


def test_error_table() -> None:
    rows = table("docs/specification.md", "| error | kind of | retryable | what it says |")
    assert errors.__doc__ is not None
    tree = ["TrunklineError", *re.findall(r"[├└]── (\w+)", errors.__doc__)]
    known = {name: getattr(tl, name) for name in tree}
    assert [row[0] for row in rows] == tree
    for name, parent, retryable, _ in rows:
        assert parent == known[name].__mro__[1].__name__
        assert retryable == ("yes" if known[name].retryable else "no"), name


def test_message_tables() -> None:
    rows = table("docs/specification.md", "| field | type | default | meaning |")
    message = tl.Message(topic="t")
    assert [row[0] for row in rows] == list(tl.Message.__struct_fields__)
    for field, row in zip(msgspec.structs.fields(tl.Message), rows, strict=True):
        assert row[2] == str(field.default) or row[2] == repr(field.default), row[0]
        assert hasattr(message, row[0])
    types = table("docs/specification.md", "| type | value | where it goes by default |")
    assert [(name, int(value)) for name, value, _ in types] == [(each.name, each.value) for each in tl.MessageType]


def test_fate_table() -> None:
    rows = table("docs/specification.md", "| fate | when |")
    assert [row[0] for row in rows] == [fate.value for fate in tl.Fate]


def test_filter_tables() -> None:
    functions = table("docs/guide.md", "| function | is |")
    assert {row[0].partition("(")[0] for row in functions} == set(translation._FUNCTIONS)
    fields = table("docs/guide.md", "| name | kind |")
    assert {name for row in fields for name in row[0].replace("`", "").split(", ")} == set(translation._FIELDS)


def test_layers_table() -> None:
    """ARCHITECTURE.md shows the layers from the top, `test_layers.py` lists them from the bottom."""
    tree = ast.parse((ROOT / "tests/test_layers.py").read_text())
    values = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS"
    ]
    (layers,) = map(ast.literal_eval, values)
    shown = [row[0].replace("`", "").split(", ") for row in table("ARCHITECTURE.md", "| layer, from the top | holds |")]
    assert [sorted(names) for names in reversed(shown)] == [sorted(names) for names in layers]


def test_options_tables() -> None:
    delivery = table("docs/guide.md", "| option | default | what it does |")
    assert {row[0] for row in delivery} == {*tl.Delivery.__struct_fields__, "concurrency", "timeout_s"}
    durable = table("docs/journal.md", "| option | for a durable subscription |")
    assert {row[0] for row in durable} - {"priority, ttl"} <= set(tl.Delivery.__struct_fields__)
    rules = table("docs/guide.md", "| filter of a rule | fits |")
    assert {row[0] for row in rules} == set(tl.Rule.__struct_fields__) - {"id", "handler", "priority", "enabled"}


def test_states_of_actors() -> None:
    rows = table("docs/actors.md", "| state | meaning |")
    assert [state for state, _ in rows] == [state.value for state in CellState]


def test_contributors_find_the_tests() -> None:
    (row,) = (line for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if line.startswith("| `tests` |"))
    listed = row.partition("one folder for each part of the library: ")[2].partition(";")[0]
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/*.py")}
    assert set(re.findall(r"`(\w+)`", listed)) == folders
