"""`trunkline kernel`: run notebooks, watch a running kernel, share a kernel on a bus."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from trunkline.cli import show
from trunkline.cli.options import AsJson, Hub, hub_at
from trunkline.errors import MissingExtra, UsageError
from trunkline.jupyter.errors import KernelDied, KernelError

if TYPE_CHECKING:
    from trunkline.jupyter.kernel import Kernel
    from trunkline.jupyter.notebook import NotebookRun
    from trunkline.jupyter.notebook_options import NotebookOptions
    from trunkline.jupyter.wire import KernelMessage

app = typer.Typer(help="Jupyter kernels: run notebooks, watch, share.", no_args_is_help=True)

ConnectionFile = Annotated[
    str | None,
    typer.Argument(help="A connection file, or a part of its name; the newest kernel if not given.", metavar="KERNEL"),
]


@app.command()
def run(
    notebook: Annotated[Path, typer.Argument(help="The notebook.", metavar="NOTEBOOK")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to write the executed notebook; by default over the original."),
    ] = None,
    kernel: Annotated[
        str | None, typer.Option(help="The kernel; otherwise the one the notebook names, or python3.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="The time limit of a cell in seconds; by default none.", min=0.001)
    ] = None,
    allow_errors: Annotated[
        bool, typer.Option("--allow-errors", help="Continue after a cell that fails; its error is in the notebook.")
    ] = False,
    allow_error: Annotated[
        list[str] | None,
        typer.Option(help="Continue after an error of this name, such as ZeroDivisionError; may be repeated."),
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter", "-p", help="A parameter, name=value; the value is JSON, or text.", metavar="NAME=VALUE"
        ),
    ] = None,
    skip_tag: Annotated[str, typer.Option(help="The tag of cells that are not executed.")] = "skip-execution",
    hub: Annotated[str | None, typer.Option(help="Publish the kernel's traffic on the hub at this address.")] = None,
    json: AsJson = False,
) -> None:
    """Execute a notebook and write its outputs into it. It stops at the first cell that fails; outputs are saved."""
    from trunkline.cli.notebook_command import NotebookCommand

    options: NotebookOptions = {
        "allow_errors": allow_errors,
        "allow_error_names": allow_error or (),
        "timeout_s": timeout,
        "skip_cells_with_tag": skip_tag,
        "parameters": _parameters(parameter or []),
    }
    target = output or notebook
    command = NotebookCommand(notebook, target, kernel, options, None if hub is None else hub_at(hub))
    done = command.run()
    if json:
        show.json(_summary(done, target))
    elif done.ok:
        show.output(f"{show.counted(len(done.results), 'cell')} executed: {target}")
    if not done.ok:
        if not json:
            _complain(done, target)
        raise typer.Exit(1)


def _parameters(words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"--parameter {word!r} has no value: write it as name=value")
        try:
            found[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            found[name] = value
    return found


def _summary(done: NotebookRun, target: Path) -> dict[str, Any]:
    return {
        "notebook": str(target),
        "ok": done.ok,
        "executed": len(done.results),
        "skipped": done.skipped,
        "failed": done.failed,
        "cells": [
            {
                "cell": place,
                "status": result.status,
                "complete": result.complete,
                "missing": result.missing,
                "execution_count": result.execution_count,
                "outputs": len(result.outputs),
                "seconds": result.timings.complete_s,
                "error": None if result.error is None else str(result.error),
            }
            for place, result in done.results.items()
        ],
    }


def _complain(done: NotebookRun, target: Path) -> None:
    assert done.failed is not None
    result = done.results[done.failed]
    if result.error is not None:
        for line in "\n".join(result.error.traceback).splitlines():
            show.notice(_without_colours(line))
    why = str(result.error) if result.error is not None else f"{' and '.join(result.missing)} did not arrive in time"
    left = f"; {show.counted(done.skipped, 'cell')} after it not executed" if done.skipped else ""
    show.notice(f"error: cell {done.failed + 1}: {why}{left}. The outputs so far are in {target}")


@app.command()
def watch(
    kernel: ConnectionFile = None,
    count: Annotated[int | None, typer.Option("--count", "-n", help="Exit after this many messages.", min=1)] = None,
    json: AsJson = False,
) -> None:
    """Show all messages of a running kernel, until Ctrl-C."""
    from trunkline.hub.serve import run as run_async
    from trunkline.jupyter import attach

    async def work() -> None:
        left = count
        async with attach(kernel) as attached, attached.subscribe(capacity=100_000) as messages:
            if not json:
                show.notice(f"watching kernel {attached.id}; Ctrl-C ends it")
            async for message in messages:
                _show(attached, message, json)
                left = None if left is None else left - 1
                if left == 0:
                    return
            raise KernelDied(attached.id, await attached.death())

    run_async(work())


def _show(kernel: Kernel, message: Any, json: bool) -> None:
    received: KernelMessage = message
    if json:
        show.json(
            {
                "kernel": kernel.id,
                "socket": received.socket,
                "header": msgspec.to_builtins(received.header),
                "parent_header": msgspec.to_builtins(received.parent),
                "content": received.content,
                "buffers": len(received.buffers),
            }
        )
        return
    who = received.parent.username or "-"
    parent = received.parent.msg_id[-8:] or "-"
    show.output(
        (show.time_of(received.timestamp_ns), "dim"), f"  {who}  {parent}  {received.msg_type}  {_gist(received)}"
    )


def _gist(message: KernelMessage) -> str:
    """A one-line summary of a kernel message."""
    content = message.content
    match message.msg_type:
        case "status":
            text = content.get("execution_state")
        case "stream":
            text = f"{content.get('name')}: {content.get('text')}"
        case "execute_input":
            text = content.get("code")
        case "error":
            text = f"{content.get('ename')}: {content.get('evalue')}"
        case "execute_result" | "display_data" | "update_display_data":
            data = content.get("data") or {}
            text = data.get("text/plain") or ", ".join(data)
        case kind if kind.startswith("comm_"):
            text = f"{content.get('comm_id')} {content.get('target_name', '')}"
        case _:
            text = show.to_json(content).decode()
    return str(text)[: show.MAX_PAYLOAD_CHARS]


@app.command()
def share(
    kernel: ConnectionFile = None,
    hub: Hub = "",
    start: Annotated[
        str | None, typer.Option(help="Start a kernel of this name and share it, instead of a running one.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Share a kernel on a hub until Ctrl-C: its traffic is on kernel.<id>.>, and others there may use it."""
    from trunkline.connect import connect
    from trunkline.hub.serve import run as run_async
    from trunkline.jupyter import attach, start_kernel

    if start is not None and kernel is not None:
        raise UsageError("pass either a running kernel or --start, not both")

    async def work() -> None:
        async with connect(hub_at(hub), name="trunkline kernel share") as bus:
            opening = start_kernel(start, bus=bus, share=True) if start else attach(kernel, bus=bus, share=True)
            async with opening as shared:
                if json:
                    show.json({"kernel": shared.id, "topics": f"kernel.{shared.id}.>"})
                else:
                    show.output(shared.id)
                show.notice(f"shared on kernel.{shared.id}.>; Ctrl-C ends it")
                raise KernelDied(shared.id, await shared.death())

    run_async(work())


@app.command("list")
def list_kernels(json: AsJson = False) -> None:
    """The kernels that have a connection file here."""
    try:
        from jupyter_core.paths import jupyter_runtime_dir
    except ImportError as error:
        raise MissingExtra("jupyter", "kernels") from error
    from trunkline.jupyter.sockets import KernelConnection

    rows: list[list[object]] = []
    for path in sorted(Path(jupyter_runtime_dir()).glob("kernel-*.json"), key=lambda file: file.stat().st_mtime):
        try:
            connection = KernelConnection.load(path)
        except KernelError:
            continue
        rows.append([path.stem.removeprefix("kernel-"), connection.kernel_name or "-", str(path)])
    if json:
        for row in rows:
            show.json(dict(zip(("kernel", "name", "connection_file"), row, strict=True)))
    elif rows:
        show.table("", ["kernel", "name", "connection file"], rows)
    else:
        show.notice(f"no connection files in {jupyter_runtime_dir()}")


def _without_colours(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)
