"""Access control of the page: a token is passed once in the address, then a cookie proves it."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from html import escape
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

TOKEN: Final = "token"
PROTECTION: Final[Headers] = [
    # The page runs only its own scripts, loads nothing from other sites, and cannot be framed.
    (
        b"content-security-policy",
        b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline';"
        b" img-src 'self' data:; font-src 'self' data:; connect-src 'self' ws: wss:; frame-ancestors 'none';"
        b" base-uri 'none'; form-action 'self'; object-src 'none'",
    ),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]

REFUSAL: Final = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Trunkline: token needed</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
:root{{color-scheme:light dark}}body{{font:16px/1.5 system-ui,sans-serif;display:grid;place-items:center;height:90vh}}
main{{max-width:30rem;padding:2rem}}input{{font:inherit;padding:.4rem .6rem;width:100%;box-sizing:border-box}}
button{{font:inherit;padding:.4rem 1rem;margin-top:.8rem}}</style></head><body><main><h1>This page needs its token</h1>
<p>{why} Open the address that <code>trunkline page</code> printed, or enter its token here.</p>
<form method="get" action="{action}"><input name="token" type="password" autofocus aria-label="token" required>
<button>Open</button></form></main></body></html>"""


class TokenGuard:
    """Wraps the whole application. Without the token nothing is served, neither files nor the websocket."""

    def __init__(self, app: Application, token: str, port: int, *, secure: bool) -> None:
        self.app = app
        self._token = token.encode()
        # Cookies are not separated by port: several pages on one machine need different cookie names.
        self._cookie = f"trunkline_page_{port}"
        self._proof = hashlib.sha256(b"page " + self._token).hexdigest()
        self._secure = secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if not _same_origin(headers):
            await self._refuse(scope, send, 403, "The request came from another site.")
        elif self._proved(headers):
            await self.app(scope, receive, _protected(send))
        elif scope["type"] == "http" and (given := self._given(scope)) is not None:
            if hmac.compare_digest(given, self._token):
                await self._welcome(scope, send)
            else:
                await self._refuse(scope, send, 401, "The token is wrong.")
        else:
            await self._refuse(scope, send, 401, "")

    def _proved(self, headers: dict[bytes, bytes]) -> bool:
        bearer = headers.get(b"authorization", b"")
        if bearer.startswith(b"Bearer ") and hmac.compare_digest(bearer[7:], self._token):
            return True
        try:
            cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return False
        found = cookies.get(self._cookie)
        return found is not None and hmac.compare_digest(found.value.encode(), self._proof.encode())

    def _given(self, scope: Scope) -> bytes | None:
        return next((value.encode() for name, value in _query(scope) if name == TOKEN), None)

    async def _welcome(self, scope: Scope, send: Send) -> None:
        """Redirect to the same address without the token, so that the address can be shared."""
        rest = urlencode([(name, value) for name, value in _query(scope) if name != TOKEN])
        where = _path(scope) + (f"?{rest}" if rest else "")
        # Lax: a link on another site can open the page, but no other request from another site sends the cookie.
        cookie = f"{self._cookie}={self._proof}; Path=/; HttpOnly; SameSite=Lax{'; Secure' if self._secure else ''}"
        headers = [(b"location", where.encode()), (b"set-cookie", cookie.encode())]
        await _answer(send, 303, headers, b"")

    async def _refuse(self, scope: Scope, send: Send, status: int, why: str) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 4401})
            return
        body = REFUSAL.format(why=escape(why), action=escape(_path(scope))).encode()
        await _answer(send, status, [(b"content-type", b"text/html; charset=utf-8")], body)


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)


def _path(scope: Scope) -> str:
    """The path of the request, which always stays on this site: `//host` would be the address of another one."""
    return "/" + quote(scope["path"].lstrip("/\\"), safe="/:@!$&'()*+,;=~")


def _same_origin(headers: dict[bytes, bytes]) -> bool:
    """Compare the `Origin` header with the host. A page on another port of this machine is another origin."""
    origin = headers.get(b"origin")
    if origin is None:
        return True
    try:
        return urlsplit(origin.decode("latin-1")).netloc.lower() == headers.get(b"host", b"").decode("latin-1").lower()
    except ValueError:
        return False


def _protected(send: Send) -> Send:
    async def protect(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *PROTECTION]}
        await send(message)

    return protect


async def _answer(send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    kept = (b"cache-control", b"no-store")
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length, kept, *PROTECTION]})
    await send({"type": "http.response.body", "body": body})
