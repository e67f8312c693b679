"""Backups: what is in one, what is not, and that nothing but its passphrase opens it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from Crypto.Cipher import ChaCha20_Poly1305
from Crypto.Protocol.KDF import scrypt
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import AuthenticationError, ConfigError, FlheError, ProtocolError
from flhe.keys import backup
from flhe.keys.backup import MAX_FILE, Backup, for_opening
from flhe.keys.canonical import dumps, loads
from flhe.keys.epoch import Epoch
from flhe.keys.identity import Identity
from flhe.keys.roster import Roster

PHRASE = "correct horse battery"
IDENTITY = Identity(b"i" * 32)
REAL_COST = backup.COST


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "COST", 1 << 4)


def epoch(tag: int = 7) -> Epoch:
    members = tuple(sorted(Identity(bytes([i]) * 32).public for i in range(1, 4)))
    return Epoch(
        id=bytes([tag]) * 16,
        number=2,
        run_id=9,
        roster=Roster.first_use(members),
        members=members,
        rank=1,
        group_key=bytes([tag]) * 32,
        pair_keys=(b"p" * 32, b"", b"q" * 32),
        scheme_public=b"public",
        scheme_secret=b"the scheme's secret",
    )


def test_comes_back_without_what_could_encrypt() -> None:
    kept = Backup(IDENTITY, (epoch(), epoch(8)))
    again = Backup.unseal(kept.seal(PHRASE), PHRASE)
    assert again.identity == IDENTITY
    assert [e.group_key for e in again.epochs] == [bytes([7]) * 32, bytes([8]) * 32]
    for one in again.epochs:
        assert one.scheme_secret == one.scheme_public == b""
        assert not {b"p" * 32, b"q" * 32, bytes(32)} & set(one.pair_keys)
        assert replace(one, pair_keys=epoch().pair_keys) == replace(
            for_opening(epoch(one.id[0])), pair_keys=epoch().pair_keys
        )


def test_the_format() -> None:
    """Decrypted once more, by PyCryptodome alone."""
    data = Backup(IDENTITY, ()).seal(PHRASE)
    stored = loads(data, MAX_FILE, "test")
    assert set(stored) == {"v", "kind", "salt", "box"}
    key = scrypt(PHRASE, stored["salt"], 32, N=1 << 4, r=8, p=1)  # type: ignore[arg-type]
    cipher = ChaCha20_Poly1305.new(key=key, nonce=bytes(12))  # type: ignore[arg-type]
    cipher.update(dumps(["flhe/v1/backup", 1, stored["salt"]]))
    plain = cipher.decrypt_and_verify(stored["box"][:-16], stored["box"][-16:])
    assert loads(plain, MAX_FILE, "test") == {"seed": b"i" * 32, "epochs": []}


def test_a_guess_costs_what_is_documented() -> None:
    assert "N = 2**17" in (backup.__doc__ or "")
    assert REAL_COST == 2**17


def test_each_file_has_a_salt_of_its_own() -> None:
    kept = Backup(IDENTITY, (epoch(),))
    one, other = kept.seal(PHRASE), kept.seal(PHRASE)
    assert loads(one, MAX_FILE, "test")["salt"] != loads(other, MAX_FILE, "test")["salt"]


def test_nothing_secret_shows() -> None:
    kept = Backup(IDENTITY, (epoch(),))
    data = kept.seal(PHRASE)
    for secret in (b"i" * 32, bytes([7]) * 32, PHRASE.encode()):
        assert secret not in data
        assert repr(secret)[2:-1] not in repr(kept)


def test_another_passphrase() -> None:
    data = Backup(IDENTITY, ()).seal(PHRASE)
    for wrong in ("", PHRASE + " ", PHRASE.upper()):
        with pytest.raises(
            AuthenticationError, match="another passphrase, or the file was changed"
        ):
            Backup.unseal(data, wrong)
    accent = Backup(IDENTITY, ()).seal("caf\u00e9 au lait, s'il vous plait")
    assert Backup.unseal(accent, "cafe\u0301 au lait, s'il vous plait").identity == IDENTITY


def test_a_passphrase_that_is_too_short() -> None:
    with pytest.raises(ConfigError, match="12 characters or more"):
        Backup(IDENTITY, ()).seal("x" * 11)


def test_bytes_that_are_no_backup() -> None:
    good = loads(Backup(IDENTITY, ()).seal(PHRASE), MAX_FILE, "test")
    for body, error in (
        (good | {"v": 2}, "version 2, this flhe reads 1"),
        (good | {"kind": "flhe-site"}, "no file of"),
        (good | {"salt": b""}, "16 bytes"),
        (good | {"box": 1}, "box"),
        ([], "no file of"),
    ):
        with pytest.raises(ProtocolError, match=error):
            Backup.unseal(dumps(body), PHRASE)


@given(st.integers(0, 10**5), st.integers(1, 255))
def test_a_changed_byte_is_refused(at: int, flip: int) -> None:
    data = bytearray(SEALED)
    data[at % len(data)] ^= flip
    with pytest.raises(FlheError):
        Backup.unseal(bytes(data), PHRASE)


def _sealed() -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backup, "COST", 1 << 4)
        return Backup(IDENTITY, (epoch(),)).seal(PHRASE)


SEALED = _sealed()
