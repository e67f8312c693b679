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
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    try:
        yield listening.server_port, url
    finally:
        listening.shutdown()
        listening.server_close()


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
    assert (code, headers["Cache-Control"]) == (200, "no-store")
    for shown in ("site-a in cardio", "37,035", "03" * 8, "flhe/protocol", "not joined"):
        assert shown in text
    assert (layout.home / "identity.key").read_bytes().hex() not in text


def test_it_loads_and_runs_nothing_and_escapes_what_a_server_chose(layout: Layout) -> None:
    state = status.state_of(layout)
    text = page.render(state)
    active = r"<script|<link|<img|<form|<a |src=|href=|url\(|@import| on\w+="
    assert not re.search(active, text)
    policy = page.HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert re.findall(r"<style>(.*?)</style>", text, re.DOTALL) == [page.STYLE]
    state["rounds"] = [{"round": 1, "answer": "<script>alert(1)</script>"}]
    state["superlink"] = '"><img src=x onerror=alert(1)>'
    text = page.render(state)
    assert not re.search("<script|<img", text)
    assert "&lt;script&gt;" in text


def test_whom_it_answers(layout: Layout) -> None:
    """GET of the whole secret path, by the address that was printed: against rebinding of names."""
    with serving(layout) as (port, url):
        assert url == f"http://127.0.0.1:{port}/{TOKEN}/"
        assert ask(port, Host=f"127.0.0.1:{port}")[0] == 200
        for host in ("evil.example", "localhost", "127.0.0.1", "127.0.0.1:1", ""):
            code, _, text = ask(port, Host=host)
            assert (code, "site-a" in text) == (403, False), host
        for path in ("/", f"/{TOKEN}", f"/{TOKEN}/x", f"/{TOKEN}/?x", "/token2/"):
            assert ask(port, path)[0] == 404
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
            assert ask(port, method=method)[0] == 501


def test_a_new_path_each_time_on_loopback_alone(layout: Layout, tmp_path: Path) -> None:
    with serving(layout, "") as (port, one), serving(Layout.of("cardio", tmp_path), "") as other:
        ends = [url.rsplit("/", 2)[1] for url in (one, other[1])]
        assert ends[0] != ends[1]
        assert min(map(len, ends)) >= 22
        code, _, text = ask(other[0], f"/{ends[1]}/")  # a state that cannot be read
        assert (code, str(tmp_path) in text) == (500, False)
        with pytest.raises(ConfigError, match="cannot be listened on"):
            page.server(dict, port)
    with page.server(dict, 0)[0] as listening:
        assert listening.server_address[0] == "127.0.0.1"
