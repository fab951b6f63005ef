"""Small elements for all views. Text is always a text node: content of messages never becomes markup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from nicegui import ui
from nicegui.element import Element
from nicegui.elements.mixins.text_element import TextElement

from trunkline.dashboard.page.model.text import inert


def box(classes: str, tag: str = "div", **attributes: str) -> Element:
    element = ui.element(tag).classes(classes)
    element.props.update(attributes)
    return element


def text(content: object, classes: str = "", tag: str = "div", **attributes: str) -> TextElement:
    element = TextElement(tag=tag, text=inert(str(content))).classes(classes)
    element.props.update(attributes)
    return element


def link(content: object, href: str, classes: str = "", **attributes: str) -> TextElement:
    return text(content, classes, "a", href=href, **attributes)


def message_address(message_id: str) -> str:
    return "/message/" + quote(message_id, safe="")


def address(path: str, **query: str) -> str:
    """An address of the page, with the query parameters that are not empty."""
    given = urlencode({name: value for name, value in query.items() if value})
    return f"{path}?{given}" if given else path


def tag(content: object, kind: str = "") -> TextElement:
    return text(content, f"tl-tag {kind}", "span")


def card(title: str = "", classes: str = "") -> Element:
    element = box(f"tl-card {classes}", "section")
    if title:
        with element:
            text(title, tag="h2")
    return element


def code(content: str) -> TextElement:
    return text(content, "tl-code", "pre", tabindex="0")


def empty(content: str, icon: str = "inbox") -> None:
    with box("tl-empty"):
        ui.icon(icon)
        text(content)


def facts(values: Iterable[tuple[str, object]] | Mapping[str, object]) -> None:
    """A list of names and values. A value that is a function is called to build its element."""
    items = values.items() if isinstance(values, Mapping) else values
    with box("tl-kv", "dl"):
        for name, value in items:
            text(name, tag="dt")
            if callable(value):
                with box("", "dd"):
                    value()
            else:
                text(value, tag="dd")


class Stat:
    """A number with a label and a note."""

    def __init__(self, label: str, href: str = "") -> None:
        with box("tl-card tl-stat", "a" if href else "div") as self._card:
            if href:
                self._card.props["href"] = href
                self._card.style("color:inherit;text-decoration:none")
            text(label, "l")
            self._value = text("–", "v")
            self._note = text("\u00a0", "n")

    def set(self, value: str, note: str = "", *, bad: bool = False) -> None:
        self._value.text = inert(value)
        self._note.text = inert(note) or "\u00a0"
        self._card.classes(add="bad") if bad else self._card.classes(remove="bad")


def notify(content: str, *, bad: bool = False) -> None:
    options: dict[str, Any] = {"type": "negative" if bad else "positive", "position": "top"}
    ui.notify(inert(content), **options)
