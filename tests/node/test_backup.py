"""Backups: what is in one, what is not, and that nothing but its passphrase opens it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from Crypto.Cipher import ChaCha20_Poly1305
from Crypto.Hash import SHA256
from Crypto.Protocol.KDF import HKDF, scrypt

from flhe.errors import AuthenticationError, ConfigError, ProtocolError
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.model_key import ModelKey
from flhe.keys.identity import Identity
from flhe.node import backup
from flhe.node.backup import MAX_FILE, Backup
from flhe.wire.canonical import dumps, loads
from tests.keys.masking import group

PHRASE = "correct horse battery"
IDENTITY = Identity(b"i" * 32)
REAL_COST = backup.COST


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "COST", 1 << 4)


def epoch(tag: int = 7) -> Epoch:
    kept = replace(group(3)[1][1], id=bytes([tag]) * 16, group_key=bytes([tag]) * 32)
    return replace(kept, scheme_public=b"public", scheme_secret=b"the scheme's secret")


MODELS = (ModelKey.of(epoch()), ModelKey.of(epoch(8)))


def test_comes_back_and_shows_nothing() -> None:
    kept = Backup(IDENTITY, MODELS)
    one, other = kept.seal(PHRASE), kept.seal(PHRASE)
    assert Backup.unseal(one, PHRASE) == kept
    assert loads(one, MAX_FILE, "test")["salt"] != loads(other, MAX_FILE, "test")["salt"]
    for secret in (b"i" * 32, bytes(MODELS[0].key), PHRASE.encode()):
        assert secret not in one
        assert repr(secret)[2:-1] not in repr(kept)


def test_the_key_of_models_is_derived_from_the_groups() -> None:
    """By PyCryptodome; the context is the canonical CBOR of label, run, roster and epoch."""
    agreed = epoch()
    info = dumps(["flhe/v1/models", agreed.run_id, agreed.roster.hash, agreed.id])
    key = HKDF(bytes([7]) * 32, 32, b"", SHA256, context=info)  # type: ignore[arg-type]
    assert (agreed.model_key, MODELS[0].key) == (key, key)
    assert repr(bytes(agreed.model_key))[2:-1] not in repr(MODELS[0])


def test_the_format() -> None:
    """Decrypted once more, by PyCryptodome alone."""
    data = Backup(IDENTITY, ()).seal(PHRASE)
    stored = loads(data, MAX_FILE, "test")
    assert set(stored) == {"v", "kind", "salt", "box"}
    key = scrypt(PHRASE, stored["salt"], 32, N=1 << 4, r=8, p=1)  # type: ignore[arg-type]
    cipher = ChaCha20_Poly1305.new(key=key, nonce=bytes(12))  # type: ignore[arg-type]
    cipher.update(dumps(["flhe/v1/backup", 2, stored["salt"]]))
    plain = cipher.decrypt_and_verify(stored["box"][:-16], stored["box"][-16:])
    assert loads(plain, MAX_FILE, "test") == {"seed": b"i" * 32, "models": []}


def test_a_guess_costs_what_is_documented() -> None:
    assert "N = 2**17" in (backup.__doc__ or "")
    assert REAL_COST == 2**17


def test_another_passphrase() -> None:
    data = Backup(IDENTITY, ()).seal(PHRASE)
    for wrong in ("", PHRASE + " ", PHRASE.upper()):
        with pytest.raises(AuthenticationError, match="another passphrase, or the file was"):
            Backup.unseal(data, wrong)
    accent = Backup(IDENTITY, ()).seal("caf\u00e9 au lait, s'il vous plait")
    assert Backup.unseal(accent, "cafe\u0301 au lait, s'il vous plait").identity == IDENTITY


@pytest.mark.parametrize(
    "phrase", ["correct ho", "a" * 40, " " * 12, "abababababab", "1234512345123451"]
)
def test_a_passphrase_that_is_too_short_or_repeats(phrase: str) -> None:
    with pytest.raises(ConfigError, match="12 characters or more, 6 of them different"):
        Backup(IDENTITY, ()).seal(phrase)


def test_bytes_that_are_no_backup() -> None:
    good = loads(Backup(IDENTITY, ()).seal(PHRASE), MAX_FILE, "test")
    for body, error in (
        (good | {"v": 1}, "version 1, this flhe reads 2: make another"),
        ([], "no file of"),
    ):
        with pytest.raises(ProtocolError, match=error):
            Backup.unseal(dumps(body), PHRASE)
