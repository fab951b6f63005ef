"""Generates the documents of the protocol from the types that implement it: JSON Schema, and a text for people.

`python -m trunkline.wire.document docs/protocol` writes them; a test fails when they are stale.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import msgspec

from trunkline.wire import control, frames
from trunkline.wire.codes import CODES
from trunkline.wire.control import FROM_CLIENT, FROM_HUB, VERSIONS
from trunkline.wire.story import STORY

CLIENT_FILE = "from-client.schema.json"
HUB_FILE = "from-hub.schema.json"
TEXT_FILE = "README.md"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


def documents() -> dict[str, str]:
    """The documents: file names and contents."""
    client = schema_of(FROM_CLIENT, "from-client", "The messages of a client to a hub.")
    hub = schema_of(FROM_HUB, "from-hub", "The messages of a hub to a client.")
    return {
        CLIENT_FILE: json.dumps(client, indent=2, ensure_ascii=False) + "\n",
        HUB_FILE: json.dumps(hub, indent=2, ensure_ascii=False) + "\n",
        TEXT_FILE: text(client, hub),
    }


# For machines


def schema_of(kinds: tuple[type[control.Control], ...], name: str, description: str) -> Schema:
    (union,), parts = msgspec.json.schema_components((reduce(or_, kinds),), ref_template="#/$defs/{name}")
    notes = notes_of(control)
    for title, part in parts.items():
        if "description" in part:
            # Python 3.13 removes the indentation by itself.
            part["description"] = inspect.cleandoc(part["description"])
        for field, schema in part["properties"].items():
            if note := notes.get((title, field)):
                schema["description"] = note
    return {
        "$schema": DIALECT,
        "$id": f"urn:trunkline:protocol:{VERSIONS[0]}:{name}",
        "title": f"Trunkline control protocol, version {VERSIONS[0]}: {name}",
        "description": description,
        **union,
        "$defs": parts,
    }


def notes_of(module: Any) -> dict[tuple[str, str], str]:
    """The strings below the fields of a module's types. An inherited field has the string of its base class."""
    notes: dict[tuple[str, str], str] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for base in node.bases:
            inherited = {key: note for key, note in notes.items() if key[0] == ast.unparse(base)}
            notes.update({(node.name, field): note for (_, field), note in inherited.items()})
        for field, after in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                notes[node.name, field.target.id] = inspect.cleandoc(after.value.value).replace("\n", " ")
    return notes


# For people


def text(client: Schema, hub: Schema) -> str:
    definitions = {name: part for schema in (client, hub) for name, part in schema["$defs"].items()}
    messages = {kind.__name__ for kind in (*FROM_CLIENT, *FROM_HUB)}
    _, framing, without_length = (frames.__doc__ or "").strip().split("\n\n")
    return STORY.format(
        version=VERSIONS[0],
        client_file=CLIENT_FILE,
        hub_file=HUB_FILE,
        framing=textwrap.dedent(framing).replace(": see control.py", ""),
        without_length=without_length,
        kinds="\n".join(f"| {kind.value} | {kind.name} |" for kind in frames.Kind),
        publish_head=_head(frames.PublishHead),
        deliver_head=_head(frames.DeliverHead),
        shared_payload=_head(frames.SharedPayload),
        min_shared=frames.MIN_SHARED_BYTES,
        error=_fields(definitions["Error"]),
        codes="\n".join(f"| `{code}` | {meaning} |" for code, meaning in CODES.items()),
        from_client="\n".join(_message(kind, definitions) for kind in FROM_CLIENT),
        from_hub="\n".join(_message(kind, definitions) for kind in FROM_HUB),
        parts="\n".join(_section(name, part) for name, part in definitions.items() if name not in messages),
    )


def _message(kind: type[control.Control], definitions: dict[str, Schema]) -> str:
    tag = kind.__struct_config__.tag
    return _section(str(tag), definitions[kind.__name__])


def _section(title: str, part: Schema) -> str:
    fields = [name for name in part["properties"] if name != "type"]
    table = f"{_fields(part)}\n" if fields else "It has no fields.\n"
    return f"### {title}\n\n{part.get('description', '')}\n\n{table}"


def _fields(part: Schema) -> str:
    rows = ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, schema in part["properties"].items():
        if name != "type":
            default = "" if name in part.get("required", ()) else f"`{json.dumps(schema.get('default'))}`"
            rows.append(f"| `{name}` | {_type(schema)} | {default} | {schema.get('description', '')} |")
    return "\n".join(rows)


def _head(kind: type[msgspec.Struct]) -> str:
    notes = notes_of(frames)
    _, parts = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    rows = ["| place | field | type | default | meaning |", "| --- | --- | --- | --- | --- |"]
    items = parts[kind.__name__]["prefixItems"]
    for place, (field, item) in enumerate(zip(msgspec.structs.fields(kind), items, strict=True)):
        default = "" if field.required else f"`{json.dumps(item.get('default'))}`"
        note = notes.get((kind.__name__, field.name), "")
        rows.append(f"| {place} | `{field.name}` | {_type(item)} | {default} | {note} |")
    return "\n".join(rows)


def _type(schema: Schema) -> str:
    """The type of a value, in words."""
    match schema:
        case {"$ref": str(reference)}:
            name = reference.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"anyOf": options}:
            return " or ".join(map(_type, options))
        case {"type": "array", "prefixItems": items}:
            return f"array of {len(items)}: {', '.join(map(_type, items))}"
        case {"type": "array", "items": dict(item)}:
            return f"array of {_type(item)}"
        case {"type": kind}:
            return str(kind)
    return "any"


def main(folder: str) -> None:
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for name, content in documents().items():
        (place / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
