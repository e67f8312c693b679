"""The roster file: its SHA-256 is what a node pins."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from flhe.errors import ConfigError
from flhe.keys.roster.pinned import load_pinned
from flhe.keys.roster.roster import Roster
from tests.keys.agreement import roster_of, sites


def roster(size: int = 4) -> Roster:
    return roster_of(sites(size), 0, ("flashe",))


def test_load_pinned(tmp_path: Path) -> None:
    path = tmp_path / "hospital-names.roster"
    path.write_bytes(roster().to_bytes())
    assert hashlib.sha256(path.read_bytes()).digest() == roster().hash
    assert load_pinned(str(path), roster().hash.hex()) == roster()
    with pytest.raises(ConfigError, match="pin the new hash") as caught:
        load_pinned(path, roster(5).hash.hex())
    assert "\n" not in str(caught.value)
    assert "hospital" not in str(caught.value)
    for pin in ("", "zz" * 32, "ab" * 31):
        with pytest.raises(ConfigError, match="64 hex digits"):
            load_pinned(path, pin)
    with pytest.raises(ConfigError, match="cannot read") as caught:
        load_pinned(tmp_path / "missing", roster().hash.hex())
    assert "missing" not in str(caught.value)


def test_a_damaged_file_is_not_pinned(tmp_path: Path) -> None:
    path = tmp_path / "roster"
    data = roster().to_bytes()
    for bad in (b"", b"not a roster", data[:-1], data + b"\x00"):
        path.write_bytes(bad)
        with pytest.raises(ConfigError, match="the roster file cannot be used"):
            load_pinned(path, roster().hash.hex())
