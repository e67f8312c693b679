"""A read-only page of `flhe site status`, for a browser on the same machine.

It has no script, no form and no link, and loads nothing. A browser reaches it at 127.0.0.1 under a
random path that the command prints, so neither other users of the machine nor pages of other sites
read it: another Host header, which a rebound DNS name would send, is refused.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping
from html import escape
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.resources import files
from typing import Any

from flhe.errors import ConfigError, FlheError

HOST = "127.0.0.1"
RELOAD_S, PATIENCE_S = 15, 5.0
"""Seconds between two looks of the browser, and longest wait for a request."""
STYLE = (files(__package__) / "page.css").read_text(encoding="utf-8")
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_FACTS = ("state", "superlink", "last_round", "last_request", "budget", "bytes_out", "requests")
_COMPARED = ("roster_words", "last_result")


def render(state: Mapping[str, Any]) -> str:
    """Return the page of a `state_of`; each value is escaped, for a server chose some."""
    facts = "".join(_fact(name, state[name]) for name in _FACTS if name in state)
    bad = "bad" if state["refusals"] else ""
    facts += _fact("refusals", state["refusals"], bad) + _fact("key", state["key"], code=True)
    compare = "".join(_fact(name, state[name], code=True) for name in _COMPARED if name in state)
    title = f"{escape(state['site'])} in {escape(state['federation'])}"
    sites = [{"site": s["name"], "key": s["key"]} for s in state.get("roster", {}).get("sites", ())]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="{RELOAD_S}"><style>{STYLE}</style></head>
<body><h1>{title}</h1><dl>{facts}</dl>
<h2>To compare with the other sites</h2>
<p>The roster's words and the last result are the same at all sites, unless the server lies.</p>
<dl>{compare}</dl>
{_table("Rounds", reversed(state["rounds"]), "No round yet.")}
{_table("Refusals", reversed(state["refused"]), "Nothing was refused.")}
{_table("Sites", sites, "Not joined yet.")}
</body></html>
"""


def server(
    state: Callable[[], Mapping[str, Any]], port: int = 0, path: str = ""
) -> tuple[HTTPServer, str]:
    """Return a server that listens on loopback, and the page's URL; `state` is read at each look.

    Raises ConfigError: the port is taken.
    """
    where = f"/{path or secrets.token_urlsafe(16)}/"

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE_S
        server_version, sys_version = "flhe", ""

        def do_GET(self) -> None:
            allowed = {f"{HOST}:{self.server.server_port}"}  # type: ignore[attr-defined]
            hosts = self.headers.get_all("Host") or []
            if len(hosts) != 1 or hosts[0] not in allowed:
                self._answer(403, "expected the address that `flhe site status --page` printed\n")
            elif not hmac.compare_digest(self.path.encode(), where.encode()):
                self._answer(404, "not found\n")
            else:
                try:
                    self._answer(200, render(state()), "text/html")
                except FlheError:  # no detail: the command prints it
                    self._answer(500, "the state cannot be read: type flhe site status\n")

        def _answer(self, code: int, text: str, kind: str = "text/plain") -> None:
            body = text.encode()
            self.send_response(code)
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", f"{len(body)}")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing: the path is a secret of its reader."""

    try:
        listening = HTTPServer((HOST, port), Handler)
    except OSError as error:
        raise ConfigError(f"--port {port}: cannot be listened on ({error.strerror})") from None
    return listening, f"http://{HOST}:{listening.server_port}{where}"


def _fact(name: str, value: object, kind: str = "", *, code: bool = False) -> str:
    shown = escape(_text(name, value))
    shown = f"<code>{shown}</code>" if code else shown
    return f'<div><dt>{name.replace("_", " ")}</dt><dd class="{kind}">{shown}</dd></div>'


def _table(title: str, rows: Iterable[Mapping[str, Any]], none: str) -> str:
    listed = list(rows)
    if not listed:
        return f"<h2>{title}</h2><p>{none}</p>"
    head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in listed[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_text(*cell))}</td>" for cell in row.items()) + "</tr>"
        for row in listed
    )
    return f"<h2>{title}</h2><div><table><tr>{head}</tr>{body}</table></div>"


def _text(name: str, value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return f"{value:,}" if name == "bytes_out" else f"{value}"
