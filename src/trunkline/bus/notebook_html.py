"""The HTML of a bus in a notebook: its counters, and a link to the page of its hub. All text is escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape

from trunkline.bus.observe import Stats
from trunkline.delivery.fates import Account
from trunkline.plural import counted
from trunkline.transports.pages import page_address

MAX_ROWS = 20
_CREDENTIALS = re.compile(r"//[^/]*@")
COLUMNS = ("accepted", "delivered", "filtered", "expired", "dropped", "dead", "in_flight")


def html_of(name: str, place: str, stats: Stats, accounts: Mapping[str, Account]) -> str:
    """`place` is the URL of the broker, or its kind."""
    page = page_address(place) if ":" in place else ""
    link = f' · <a href="{escape(page)}" target="_blank" rel="noopener">open the page</a>' if page else ""
    # A notebook may be saved and shared, so it must not contain passwords.
    where = _CREDENTIALS.sub("//", place)
    title = f"<b>{escape(name)}</b> on {escape(where)}, {escape(stats.state.value)}{link}"
    counts = (
        f"{stats.total_messages:,} published, {stats.pending:,} in flight,"
        f" {counted(stats.dead_letters, 'dead letter')}, {counted(stats.open_requests, 'open request')}"
    )
    rows = [_row(subscriber or "(have left)", account) for subscriber, account in list(accounts.items())[:MAX_ROWS]]
    if len(accounts) > 1:
        rows.append(_row("all", stats.account))
    head = "".join(f"<th>{column.replace('_', ' ')}</th>" for column in ("subscriber", *COLUMNS))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>" if rows else ""
    rest = f"<div>and {counted(len(accounts) - MAX_ROWS, 'subscriber')} more</div>" if len(accounts) > MAX_ROWS else ""
    return f"<div>{title}<div>{counts}</div>{table}{rest}</div>"


def _row(subscriber: str, account: Account) -> str:
    cells = "".join(f'<td style="text-align:right">{getattr(account, column):,}</td>' for column in COLUMNS)
    return f"<tr><td>{escape(subscriber)}</td>{cells}</tr>"
