"""The life of a message: its events in order, its conversation, its payload and its trace."""

from __future__ import annotations

from functools import partial

from nicegui import ui
from nicegui.element import Element

from trunkline.cli import show
from trunkline.dashboard.page.elements import address, box, card, code, empty, facts, link, message_address, tag, text
from trunkline.dashboard.page.model.letters import key_of_letter
from trunkline.dashboard.page.model.life import ConversationNode, LifeEvent, MessageLife
from trunkline.dashboard.page.model.model import PageModel
from trunkline.dashboard.page.model.text import age, clock, payload_text
from trunkline.dashboard.page.shell import framed
from trunkline.dashboard.page.theme import FATES
from trunkline.dashboard.page.views.channels import schema_address
from trunkline.message import Message
from trunkline.schema import Checker
from trunkline.wire.control import SchemaInfo

KINDS = {"published": "#3b5bdb", "passed": "#8b6fd6", "attempt": "#c98a1b", "in flight": FATES["in_flight"], **FATES}
UNKNOWN = "not known here: it was never accepted, or it is older than the records"


def register(model: PageModel) -> None:
    @ui.page("/message/{message_id:path}")
    def life(message_id: str) -> None:
        with framed(model, "Message", "/messages") as shell:
            text(message_id, "tl-sub tl-mono").style("margin:-10px 0 14px;overflow-wrap:anywhere")
            view = LifeView(model, message_id, box(""))
            shell.every(2.0, view.refresh)


class LifeView:
    def __init__(self, model: PageModel, message_id: str, content: Element) -> None:
        self._model, self._id, self._content = model, message_id, content
        self._shown: MessageLife | None = None

    async def refresh(self) -> None:
        if self._model.look() is None:
            # The first snapshot of the hub has the location of its journal.
            await self._model.refresh()
        life = await self._model.life_of(self._id)
        if life == self._shown:
            return
        schema = None if life.message is None else await self._model.schema_for(life.message)
        self._shown = life
        self._content.clear()
        with self._content:
            build_life(life, schema)


def build_life(life: MessageLife, schema: SchemaInfo | None) -> None:
    message = life.message
    if message is None and not life.events:
        with card():
            empty(f"This message is {life.note or UNKNOWN}.", "search_off")
            link("Search all messages by text, topic or time", "/messages").style("display:block;text-align:center")
        return
    with box("tl-grid tl-halves"):
        with card("What happened"):
            _timeline(life.events, 0 if message is None else message.timestamp_ns)
            if life.note:
                text(life.note, "tl-note")
        with card("Message"):
            if message is None:
                text("Only its fates are known.", "tl-note")
            else:
                _about(message)
    if message is not None:
        with card("Payload"):
            if schema is not None:
                _fits(message, schema)
            code(payload_text(message) or "(empty)")
    if life.conversation:
        with card(f"Conversation: {show.counted(len(life.conversation), 'message')}"):
            _conversation(life.conversation, life.message_id)
    for letter in life.letters:
        with card(f"Dead at {letter.subscriber}"):
            link("open its dead letters", f"/dead-letters/{key_of_letter(letter)}")
            code(letter.traceback or letter.reason)


def _fits(message: Message, schema: SchemaInfo) -> None:
    """Show whether the payload conforms to its schema."""
    problem = Checker(schema.schema)(show.payload(message))
    with box("tl-tools"):
        text("schema", "tl-note", "span")
        link(f"{schema.name} {schema.version}", schema_address(schema.name))
        tag(
            "matches" if problem is None else f"does not match, at {problem[0]}: {problem[1]}",
            "bad" if problem else "good",
        )


def _timeline(events: list[LifeEvent], begin_ns: int) -> None:
    with box("tl-tl", "ol"):
        for event in events:
            with box("", "li"):
                text(_when(event, begin_ns), "w")
                box("b").style(f"background:{KINDS.get(event.kind, '#8a94a6')}")
                with box(""):
                    with box(""):
                        text(event.kind, "k", "span")
                        text(f" {'by' if event.kind == 'published' else 'at'} {event.who}", "x", "span")
                    if event.text:
                        text(event.text, "x")


def _when(event: LifeEvent, begin_ns: int) -> str:
    if not event.at_ns:
        return "waiting" if event.kind == "in flight" else "–"
    if event.kind == "published" or not begin_ns:
        return clock(event.at_ns)[6:]
    return f"+{age((event.at_ns - begin_ns) / 1e9)}" if event.at_ns >= begin_ns else clock(event.at_ns)[6:]


def _about(message: Message) -> None:
    known: list[tuple[str, object]] = [
        ("topic", partial(link, message.topic, address("/messages", topic=message.topic), "tl-mono")),
        ("time", show.time_of(message.timestamp_ns)),
        ("number", f"{message.seq:,}"),
        ("type", partial(tag, message.type.name.lower())),
        ("sender", message.sender),
    ]
    for name in ("recipient", "reply_to", "schema"):
        if value := getattr(message, name):
            known.append((name.replace("_", " "), value))
    for name in ("correlation_id", "request_id"):
        if value := getattr(message, name):
            known.append(
                (name.replace("_", " "), partial(link, value, address("/messages", correlation=value), "tl-mono"))
            )
    if message.ttl_s is not None:
        known.append(("expires after", age(message.ttl_s)))
    known += [("priority", message.priority), ("format", f"{message.content_type}, {show.size(message.size)}")]
    if message.trace:
        known.append(("trace", message.trace))
    known += [(f"header {name}", value) for name, value in (message.headers or {}).items()]
    facts(known)


def _conversation(nodes: list[ConversationNode], own: str) -> None:
    with box("tl-tree"):
        for node in nodes:
            message = node.message
            with box(f"r {'me' if message.id == own else ''}"):
                with box("").style(f"padding-left:{min(node.depth, 20) * 20}px"):
                    link(message.topic, message_address(message.id), "tl-mono")
                    text(f"  {message.sender}", "tl-note", "span")
                tag(message.type.name.lower(), "bad" if message.type.name == "ERROR" else "")
                text(f"+{age(node.after_ns / 1e9)}", "tl-note")
