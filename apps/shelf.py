"""Signed apps for SuperNodes that trust named reviewers only, without a public hub.

A SuperNode with `--trusted-entities` runs an app only if one of the listed keys has signed it. The
SuperLink of Flower passes on signatures only with apps from a hub, named by its variable
FLWR_SUPERGRID_API_URL. This is one, for a coordinator's own apps (docs/deploy.md). Neither shelf
nor SuperLink need be trusted: SuperNodes verify the signature over the app's SHA-256.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import socket
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from flhe.errors import ConfigError, FlheError
from flhe.provision import public_files
from flhe.provision.federation.reviewers import key_id

SIGNATURES = ".signatures"
"""Suffix of an app's file of signatures, a JSON list."""
SIGNED = ("public_key_id", "signed_at", "signature")
FETCH, FABS = "/v1/hub/fetch-fab", "/fabs/"
MAX_REQUEST = 1 << 16
PATIENCE = 10.0  # seconds that a connection may last


def add_signature(fab: Path, key: Ed25519PrivateKey, signed_at: int) -> None:
    """Sign the app in a file; its signatures lie beside it, one for each key.

    As Flower's reviewers sign: Ed25519 over be64(time) and the app's SHA-256.

    Raises ConfigError: files that cannot be read or written.
    """
    beside = fab.with_name(fab.name + SIGNATURES)
    message = signed_at.to_bytes(8, "big") + hashlib.sha256(_read(fab)).digest()
    made = {
        "public_key_id": key_id(key.public_key()),
        "signed_at": signed_at,
        "signature": base64.urlsafe_b64encode(key.sign(message)).decode("ascii"),
    }
    others = [s for s in signatures(fab) if s["public_key_id"] != made["public_key_id"]]
    public_files.replace(beside, json.dumps([*others, made], indent=2).encode() + b"\n")


def signatures(fab: Path) -> list[dict[str, Any]]:
    """Return the signatures beside an app's file; none without that file."""
    beside = fab.with_name(fab.name + SIGNATURES)
    if not beside.exists():
        return []
    with suppress(LookupError, TypeError, ValueError):
        return [{name: each[name] for name in SIGNED} for each in json.loads(_read(beside))]
    raise ConfigError(f"{beside}: damaged; remove it and sign the app again")


def find(directory: Path, app_id: str, version: str | None) -> Path | None:
    """Return the newest file of an app (`@publisher/name`), or that of a version.

    None if `directory` has no readable one among its `*.fab`, as `flwr build` makes them.
    """
    found = []
    for path in filter(Path.is_file, directory.glob("*.fab")):
        with suppress(Exception):  # a damaged one does not stop the others
            with zipfile.ZipFile(io.BytesIO(_read(path))) as fab:
                app = tomllib.loads(fab.read("pyproject.toml").decode())
            project, publisher = app["project"], app["tool"]["flwr"]["app"]["publisher"]
            named = f"@{publisher}/{project['name']}" == app_id
            if named and version in (None, project["version"]):
                found.append((path.stat().st_mtime, path))
    return max(found)[1] if found else None


def _handler(directory: Path) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers the two requests of a SuperLink."""

        def setup(self) -> None:
            super().setup()
            late = threading.Timer(PATIENCE, self._hang_up)
            late.daemon = True
            late.start()

        def _hang_up(self) -> None:
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

        def do_POST(self) -> None:
            written = self.headers.get("Content-Length", "")
            size = int(written) if re.fullmatch("[0-9]{1,9}", written) else 0
            answer = None
            with suppress(FlheError, LookupError, AttributeError, TypeError, ValueError):
                if self.path == FETCH and 0 < size <= MAX_REQUEST:
                    answer = self._found(json.loads(self.rfile.read(size)))
            code, said = (200, answer) if answer else (404, {"detail": "no such app on this shelf"})
            self._say(code, json.dumps(said).encode())

        def _found(self, asked: Any) -> dict[str, Any] | None:
            if not (path := find(directory, str(asked["app_id"]), asked.get("app_version"))):
                return None
            host = self.headers.get("Host", "")
            return {
                "fab_url": f"http://{host}{FABS}{quote(path.name)}",
                "verifications": signatures(path),
            }

        def do_GET(self) -> None:
            known = {FABS + quote(path.name): path for path in directory.glob("*.fab")}
            try:
                self._say(200, _read(known[self.path]), "application/octet-stream")
            except (KeyError, ConfigError):
                self._say(404, b"{}")

        def _say(self, code: int, body: bytes, kind: str = "application/json") -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Log nothing: the SuperLink has a log of its own."""

    return Handler


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore closed connections; report all else."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@contextmanager
def serving(directory: Path, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve a shelf; yield the SuperLink's value of FLWR_SUPERGRID_API_URL.

    Raises ConfigError: no such directory, or an address that cannot be used.
    """
    if not directory.is_dir():
        raise ConfigError(f"{directory}: no such directory")
    try:
        server = _Server((host, port), _handler(directory))
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port} ({error.strerror})") from None
    thread = threading.Thread(target=server.serve_forever, name="shelf", daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from None


def reviewer_key(path: Path) -> Ed25519PrivateKey:
    """Read a reviewer's key: Ed25519, of OpenSSH, without passphrase."""
    data = _read(path)
    with suppress(ValueError, TypeError, UnsupportedAlgorithm):
        key = load_ssh_private_key(data, password=None)
        if isinstance(key, Ed25519PrivateKey):
            return key
    raise ConfigError(
        f"{path}: not an Ed25519 key of OpenSSH without passphrase; make one with "
        "`ssh-keygen -t ed25519 -N '' -f reviewer`"
    )
