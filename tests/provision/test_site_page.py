"""The page of `flhe site status`: what it shows, whom it answers, and that it escapes."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flhe.errors import ConfigError
from flhe.node import audit
from flhe.node.store import Store
from flhe.provision.site import page, status
from flhe.provision.site.layout import Layout
from tests.patience import PATIENCE_S
from tests.provision.site import good

TOKEN = "token"


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A site that has answered three rounds and refused a request."""
    where = tmp_path_factory.mktemp("page") / "site-a"
    good("site", "init", "cardio", "--name", "site-a", "--dir", where, "--yes")
    found = Layout.of("cardio", where)
    store = Store(found.home)
    for number in range(1, 4):
        said: dict[str, Any] = {"run": 7, "seconds": 1.5, "time": 1767323045 + number}
        audit.write(store, audit.Entry(**said, stage="status", answer="status"))
        more = {"round": number, "bytes_out": 12_345, "result": bytes([number]) * 32}
        audit.write(store, audit.Entry(**said, **more, stage="round", answer="update"))
    audit.write(store, audit.Entry(**said, stage="round", round=4, answer=audit.REFUSED, code=1014))
    return found


@contextmanager
def serving(layout: Layout, path: str = TOKEN) -> Iterator[tuple[int, str]]:
    """A page's port and URL."""
    listening, url = page.server(lambda: status.state_of(layout), 0, path)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield listening.server_port, url
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join(PATIENCE_S)


def ask(
    port: int, path: str = f"/{TOKEN}/", method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read().decode()


def test_it_shows_rounds_bytes_refusals_and_what_is_compared(layout: Layout) -> None:
    state = status.state_of(layout)
    assert (state["requests"], state["refusals"], state["bytes_out"]) == (7, 1, 3 * 12_345)
    assert [each["round"] for each in state["rounds"]] == [1, 2, 3]
    with serving(layout) as (port, _):
        code, headers, text = ask(port)
    assert code == 200
    for shown in ("site-a in cardio", "37,035", "03" * 8, "flhe/protocol", "not joined"):
        assert shown in text
    assert headers["Cache-Control"] == "no-store"
    assert (layout.home / "identity.key").read_bytes().hex() not in text


def test_it_loads_and_runs_nothing(layout: Layout) -> None:
    text = page.render(status.state_of(layout))
    assert not re.search(r"<script|<link|<img|<form|<a |src=|href=|url\(|@import| on\w+=", text)
    policy = page.HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style == page.STYLE


def test_what_a_server_chose_is_escaped(layout: Layout) -> None:
    state = status.state_of(layout)
    state["rounds"] = [{"round": 1, "answer": "<script>alert(1)</script>"}]
    state["superlink"] = '"><img src=x onerror=alert(1)>'
    text = page.render(state)
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize("host", ["evil.example", "localhost", "127.0.0.1", "127.0.0.1:1", ""])
def test_another_host_is_refused_against_rebinding(layout: Layout, host: str) -> None:
    with serving(layout) as (port, _):
        code, _, text = ask(port, Host=host)
        assert (code, "site-a" in text) == (403, False)
        assert ask(port, Host=f"127.0.0.1:{port}")[0] == 200


def test_only_the_whole_secret_path_is_answered(layout: Layout) -> None:
    with serving(layout) as (port, url):
        assert url == f"http://127.0.0.1:{port}/{TOKEN}/"
        for path in ("/", f"/{TOKEN}", f"/{TOKEN}/x", f"/{TOKEN}/?x", "/token2/"):
            assert ask(port, path)[0] == 404
    with serving(layout, "") as one, serving(layout, "") as two:
        ends = [url.rsplit("/", 2)[1] for _, url in (one, two)]
    assert ends[0] != ends[1]
    assert min(map(len, ends)) >= 22


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_nothing_but_get(layout: Layout, method: str) -> None:
    with serving(layout) as (port, _):
        assert ask(port, method=method)[0] == 501


def test_loopback_alone_and_a_port_that_is_taken(layout: Layout) -> None:
    listening, _ = page.server(dict, 0)
    with listening:
        assert listening.server_address[0] == "127.0.0.1"
        with pytest.raises(ConfigError, match="cannot be listened on"):
            page.server(dict, listening.server_port)


def test_a_state_that_cannot_be_read_says_no_more(layout: Layout, tmp_path: Path) -> None:
    with serving(Layout.of("cardio", tmp_path)) as (port, _):
        code, _, text = ask(port)
    assert code == 500
    assert str(tmp_path) not in text
