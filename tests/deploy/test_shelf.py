"""Signed apps: what this signs and serves, Flower's own code takes; anything altered it does not."""

from __future__ import annotations

import json
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab import Fab
from flwr.supercore.utils import request_download_link

from flhe.errors import ConfigError
from flhe.provision.federation.reviewers import file_of, read_public
from flhe_app import shelf
from flhe_lab.bench.synthetic import write_app
from flhe_lab.rehearsal import app as loopback_app
from tests.patience import PATIENCE_S
from tests.provision.site import bad, good

APP_ID = loopback_app.APP_ID

# Of Flower's own, when it builds an app.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")


@pytest.fixture
def fab(tmp_path: Path) -> Path:
    write_app(tmp_path / "app", loopback_app.NAME, loopback_app.__name__, {"rounds": 3})
    (tmp_path / "shelf").mkdir()
    path = tmp_path / "shelf" / "app.fab"
    path.write_bytes(build_fab_from_disk(tmp_path / "app"))
    return path


def key_files(directory: Path, name: str) -> Path:
    key, path = Ed25519PrivateKey.generate(), directory / name
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_name(f"{name}.pub").write_bytes(public)
    return path


def trusts(fab: Path, trusted: dict[str, str], content: bytes | None = None) -> bool:
    from flwr.superlink.servicer.control.control_handlers import _format_verification
    from flwr.supernode.start_client_internal import _verify_fab

    data = fab.read_bytes() if content is None else content
    return _verify_fab(Fab("", data, _format_verification(shelf.signatures(fab))), trusted)


def test_flower_takes_what_a_trusted_reviewer_signed_and_nothing_else(
    fab: Path, tmp_path: Path
) -> None:
    reviewer, stranger = key_files(tmp_path, "reviewer"), key_files(tmp_path, "stranger")
    public = read_public(reviewer.with_name("reviewer.pub"))
    trusted = yaml.safe_load(file_of([public.public_bytes_raw()]))
    assert not trusts(fab, trusted)
    good("shelf", "sign", fab, "--key", stranger)
    assert not trusts(fab, trusted)
    good("shelf", "sign", fab, "--key", reviewer)
    good("shelf", "sign", fab, "--key", reviewer)
    assert len(shelf.signatures(fab)) == 2  # one a key
    assert trusts(fab, trusted)
    content = bytearray(fab.read_bytes())
    content[-1] ^= 1
    assert not trusts(fab, trusted, bytes(content))


def test_flower_finds_apps_and_their_signatures_on_the_shelf(fab: Path) -> None:
    import requests

    shelf.add_signature(fab, Ed25519PrivateKey.generate(), 1_800_000_000)
    with shelf.serving(fab.parent) as hub:
        for version in (None, "0.1.0"):
            url, signed, _ = request_download_link(
                APP_ID, version, f"{hub}/hub/fetch-fab", "fab_url"
            )
            assert requests.get(url, timeout=PATIENCE_S).content == fab.read_bytes()
            assert signed == shelf.signatures(fab)
        for app_id, version in ((APP_ID, "0.2.0"), ("@flhe/other", None)):
            with pytest.raises(ValueError, match="not found"):
                request_download_link(app_id, version, f"{hub}/hub/fetch-fab", "fab_url")
        for path in ("/fabs/../app/pyproject.toml", "/fabs/app.fab.signatures", "/"):
            assert (
                requests.get(hub.removesuffix("/v1") + path, timeout=PATIENCE_S).status_code == 404
            )
        for body in (b"", b"[]", b"{", b'{"app_id": 5}', b"x" * (1 << 17)):
            assert (
                requests.post(f"{hub}/hub/fetch-fab", body, timeout=PATIENCE_S).status_code == 404
            )


def test_one_damaged_app_costs_the_others_nothing(fab: Path) -> None:
    import requests

    (fab.parent / "broken.fab").write_bytes(b"no archive")
    (fab.parent / "cut.fab").write_bytes(fab.read_bytes()[:-50])
    (fab.parent / "gone.fab").symlink_to("nowhere")
    os.mkfifo(fab.parent / "waits.fab")
    data = bytearray(fab.read_bytes())
    data[60:200] = bytes(140)  # within what is compressed
    (fab.parent / "mein pröjekt.fab").write_bytes(data)
    with shelf.serving(fab.parent) as hub:
        where = f"{hub}/hub/fetch-fab"
        url, _, _ = request_download_link(APP_ID, None, where, "fab_url")
        assert requests.get(url, timeout=PATIENCE_S).content == fab.read_bytes()
        assert requests.post(where, json={"app_id": "@"}, timeout=PATIENCE_S).status_code == 404
        assert requests.get(hub[:-3] + "/fabs/gone.fab", timeout=PATIENCE_S).status_code == 404
        fab.with_name("app.fab.signatures").write_bytes(b"{")
        answer = requests.post(where, json={"app_id": APP_ID}, timeout=PATIENCE_S)
        assert answer.status_code == 404


def test_a_request_that_is_none_or_never_ends(
    fab: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shelf, "PATIENCE", 0.2)
    post = b"POST /v1/hub/fetch-fab HTTP/1.1\r\n"
    with shelf.serving(fab.parent) as hub:
        host, port = hub.removeprefix("http://").removesuffix("/v1").split(":")

        def said(request: bytes) -> bytes:
            with socket.create_connection((host, int(port)), 5) as connection:
                connection.sendall(request)
                with suppress(ConnectionResetError):
                    return connection.makefile("rb").read()
            return b""

        with socket.create_connection((host, int(port)), 5) as gone:  # closed with a reset
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.sendall(post + b"Content-Length: 100\r\n\r\n{")
        for length in (b"abc", b"-1", b"1e3", b"\xb2", b"9" * 40, b""):
            answer = said(post + b"Content-Length: " + length + b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.0 404"), length
        for half in (post, post + b"Content-Length: 100\r\n\r\n{", b"GE", b""):
            assert not said(half), half
    assert "Traceback" not in capfd.readouterr().err


def test_what_cannot_work_is_said(fab: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"), shelf.serving(tmp_path / "none"):
        pass
    (tmp_path / "bad").write_text("no key", encoding="utf-8")
    bad("shelf", "sign", fab, "--key", tmp_path / "bad")
    bad("shelf", "sign", tmp_path / "none.fab", "--key", key_files(tmp_path, "k"))
    fab.with_name("app.fab.signatures").write_text(json.dumps([{"no": 1}]), encoding="utf-8")
    with pytest.raises(ConfigError, match="damaged"):
        shelf.signatures(fab)
