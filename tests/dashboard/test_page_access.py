"""Access to the page: plain HTTP with and without the token, from other sites, and the listening address."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from tests.cli.commands import DEADLINE_S, environment, shop
from tests.dashboard.pages import PROGRAM, TOKEN, RunningPage, page
from trunkline.cli.main import run
from trunkline.dashboard.page.place import PagePlace, PageSettings
from trunkline.errors import InvalidSettings
from trunkline.keys.store import KeyStore

pytestmark = pytest.mark.slow


class Answer:
    def __init__(self, place: str, path: str, headers: dict[str, str] | None = None, verify: str = "") -> None:
        parts = urlsplit(place)
        assert parts.hostname is not None
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=verify)
            connection = http.client.HTTPSConnection("localhost", parts.port, timeout=DEADLINE_S, context=context)
        else:
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=DEADLINE_S)
        try:
            connection.request("GET", path, headers=headers or {})
            found = connection.getresponse()
            self.status = found.status
            self.headers = {name.lower(): value for name, value in found.getheaders()}
            self.body = found.read().decode()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPage]:
    folder = tmp_path_factory.mktemp("journal")
    shop(folder)
    with page("--journal", str(folder)) as running:
        yield running


def test_a_stranger_sees_nothing(served: RunningPage) -> None:
    for path in ("/", "/messages", "/dead-letters", "/_nicegui/x", "/_nicegui_ws/socket.io/?EIO=4&transport=polling"):
        answer = Answer(served.address, path)
        assert answer.status == 401, path
        assert "orders" not in answer.body
        assert "trunkline page" in answer.body, "it says what to do"
    wrong = Answer(served.address, "/?token=wrong")
    assert (wrong.status, "set-cookie" in wrong.headers) == (401, False)
    assert Answer(served.address, "/", {"Authorization": "Bearer wrong"}).status == 401
    assert Answer(served.address, "/", {"Cookie": f'trunkline_page={TOKEN}; =;;"x'}).status == 401


def test_the_token_becomes_a_cookie_and_leaves_the_address(served: RunningPage) -> None:
    first = Answer(served.address, f"/messages?topic=orders.%3E&token={quote(TOKEN)}")
    assert first.status == 303
    assert first.headers["location"] == "/messages?topic=orders.%3E"
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert TOKEN not in cookie
    then = Answer(served.address, first.headers["location"], {"Cookie": cookie.partition(";")[0]})
    assert then.status == 200
    assert "Messages" in then.body
    assert "frame-ancestors 'none'" in then.headers["content-security-policy"]
    assert Answer(served.address, "/", {"Authorization": f"Bearer {TOKEN}"}).status == 200
    # A path that looks like the address of another site stays on this one.
    led = Answer(served.address, f"//evil.example/x?token={quote(TOKEN)}")
    assert led.headers["location"] == "/evil.example/x"


def test_other_sites_may_not_use_it_in_the_name_of_somebody_who_may(served: RunningPage) -> None:
    allowed = {"Authorization": f"Bearer {TOKEN}"}
    own = served.address.rstrip("/")
    assert Answer(served.address, "/", {**allowed, "Origin": own}).status == 200
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{urlsplit(own).port}1", "http://[bad"):
        assert Answer(served.address, "/", {**allowed, "Origin": origin}).status == 403, origin


def test_a_websocket_needs_the_token_and_its_own_origin(served: RunningPage) -> None:
    parts = urlsplit(served.address)

    def upgrade(*lines: str) -> bytes:
        with socket.create_connection((parts.hostname, parts.port), timeout=DEADLINE_S) as wire:
            head = [
                "GET /_nicegui_ws/socket.io/?EIO=4&transport=websocket HTTP/1.1",
                f"Host: {parts.netloc}",
                "Upgrade: websocket",
                "Connection: Upgrade",
                "Sec-WebSocket-Version: 13",
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
                *lines,
            ]
            wire.sendall(("\r\n".join(head) + "\r\n\r\n").encode())
            return wire.recv(100).split(b"\r\n")[0]

    allowed = f"Authorization: Bearer {TOKEN}"
    assert b"403" in upgrade()
    assert b"403" in upgrade(allowed, "Origin: http://evil.example")
    assert b"101" in upgrade(allowed, f"Origin: http://{parts.netloc}")


def test_nothing_is_loaded_from_elsewhere(served: RunningPage) -> None:
    body = Answer(served.address, "/", {"Authorization": f"Bearer {TOKEN}"}).body
    for text in ('src="http', "src='http", 'href="http', '@import url("http', "cdn."):
        assert text not in body


def test_elsewhere_only_with_keys_or_told_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidSettings, match=r"127\.0\.0\.1.*trunkline keys make hub HOST"):
        PagePlace(PageSettings(host="0.0.0.0", port=0))
    with pytest.raises(InvalidSettings, match="TRUNKLINE_INSECURE=1 as well"):
        PagePlace(PageSettings(host="0.0.0.0", port=0, insecure=True))
    monkeypatch.setenv("TRUNKLINE_INSECURE", "1")
    with pytest.raises(InvalidSettings, match="--insecure"):
        PagePlace(PageSettings(host="0.0.0.0", port=0))
    told_twice = PagePlace(PageSettings(host="0.0.0.0", port=0, insecure=True))
    told_twice.socket.close()
    assert told_twice.link.startswith("http://")
    assert len(told_twice.token) >= 32, "nobody serves others without a token"
    monkeypatch.delenv("TRUNKLINE_INSECURE")
    keys = KeyStore(tmp_path / "keys")
    keys.make_hub()
    with_keys = PagePlace(PageSettings(host="0.0.0.0", port=0, keys=keys))
    with_keys.socket.close()
    assert with_keys.link.startswith("https://")
    assert with_keys.certificate is not None


def test_tls_with_the_keys_of_the_hub(tmp_path: Path) -> None:
    KeyStore(tmp_path / "keys").make_hub()
    shop(tmp_path / "journal")
    words = ("--journal", str(tmp_path / "journal"), "--host", "0.0.0.0", "--keys", str(tmp_path / "keys"))
    with page(*words) as running:
        authority = str(tmp_path / "keys" / "authority.pem")
        assert running.address.startswith("https://")
        assert Answer(running.address, "/", verify=authority).status == 401
        welcomed = Answer(running.address, f"/?token={quote(TOKEN)}", verify=authority)
        assert "Secure" in welcomed.headers["set-cookie"]


def test_wrong_words_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> tuple[int, str]:
        return run(["page", *words]), capsys.readouterr().err

    code, text = said("--journal", str(tmp_path))
    assert (code, "there is no journal" in text) == (2, True)
    code, text = said("--hub", "hub:", "--journal", str(tmp_path))
    assert (code, "pass either --hub or --journal" in text) == (2, True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, text = said("--hub", "hub:", "--port", str(taken.getsockname()[1]))
    assert (code, "choose another port with --port" in text) == (1, True)


def test_up_with_a_page(tmp_path: Path) -> None:
    address = f"unix://{tmp_path / 'hub.sock'}"
    command = [*PROGRAM, "up", "--json", "--listen", address, "--page"]
    hub = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    assert hub.stdout is not None
    try:
        told = json.loads(hub.stdout.readline())
        parts = urlsplit(told["page"])
        # Connections wait until the page has started: there is nothing to poll for.
        assert Answer(told["page"], "/").status == 401
        welcomed = Answer(told["page"], f"/?{parts.query}")
        assert welcomed.status == 303
        hub.terminate()
        _, err = hub.communicate(timeout=DEADLINE_S)
        assert (hub.returncode, err) == (0, b"")
        with pytest.raises(ConnectionRefusedError):
            Answer(told["page"], "/")
    finally:
        if hub.poll() is None:
            hub.kill()
        hub.communicate()
