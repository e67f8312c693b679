"""Backups: what is in one, and that nothing but its passphrase opens it. And `flhe open`."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from Crypto.Cipher import ChaCha20_Poly1305
from Crypto.Hash import SHA256
from Crypto.Protocol.KDF import HKDF, scrypt

from flhe.errors import AuthenticationError, ConfigError, ProtocolError
from flhe.keys import seal
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.identity import Identity
from flhe.keys.seal import ModelKey
from flhe.node import backup
from flhe.node.backup import MAX_FILE, Backup
from flhe.node.checkpoint import open_checkpoint, write_model
from flhe.node.store import Store
from flhe.strategies.sealed_result import write_private
from flhe.training.model import Model
from flhe.wire.canonical import dumps, loads
from tests.keys.masking import group
from tests.provision.site import bad

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
    kept = Backup(IDENTITY.seed, MODELS)
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
    assert (ModelKey.of(agreed).key, MODELS[0].key) == (key, key)
    assert repr(key)[2:-1] not in repr(MODELS[0])
    stored = loads(MODELS[0].to_bytes(), MAX_FILE, "test")
    assert (stored["v"], stored["kind"], stored["key"]) == (1, "flhe-model-key", key)


def test_the_format() -> None:
    """Decrypted once more, by PyCryptodome alone; and a guess costs what the module says."""
    assert "N = 2**17" in (backup.__doc__ or "")
    assert REAL_COST == 2**17
    data = Backup(IDENTITY.seed, ()).seal(PHRASE)
    stored = loads(data, MAX_FILE, "test")
    assert set(stored) == {"v", "kind", "salt", "box"}
    key = scrypt(PHRASE, stored["salt"], 32, N=1 << 4, r=8, p=1)  # type: ignore[arg-type]
    cipher = ChaCha20_Poly1305.new(key=key, nonce=bytes(12))  # type: ignore[arg-type]
    cipher.update(dumps(["flhe/v1/backup", 2, stored["salt"]]))
    plain = cipher.decrypt_and_verify(stored["box"][:-16], stored["box"][-16:])
    assert loads(plain, MAX_FILE, "test") == {"seed": b"i" * 32, "models": []}


def test_another_passphrase() -> None:
    data = Backup(IDENTITY.seed, ()).seal(PHRASE)
    for wrong in ("", PHRASE + " ", PHRASE.upper()):
        with pytest.raises(AuthenticationError, match="passphrase is wrong, or the file was"):
            Backup.unseal(data, wrong)
    accent = Backup(IDENTITY.seed, ()).seal("caf\u00e9 au lait, s'il vous plait")
    assert Backup.unseal(accent, "cafe\u0301 au lait, s'il vous plait").identity == IDENTITY


@pytest.mark.parametrize(
    "phrase", ["correct ho", "a" * 40, " " * 12, "abababababab", "1234512345123451"]
)
def test_a_passphrase_that_is_too_short_or_repeats(phrase: str) -> None:
    with pytest.raises(ConfigError, match="12 characters or more, 6 of them different"):
        Backup(IDENTITY.seed, ()).seal(phrase)


# --- flhe open: sealed checkpoints, keys, formats ---


RUN = epoch().run_id


def model() -> Model:
    return Model.initial(
        {
            "w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
            "half": np.array([1.5, -2.25], np.float16),
            "brain": np.array([0x3FC0, 0xC010], np.uint16).view("V2"),  # 1.5, -2.25
            "steps": np.array(7, np.int64),
            "empty": np.zeros((0, 3), np.float32),
        }
    )


def sealed_by(agreed: Epoch, **changed: Any) -> bytes:
    key = replace(ModelKey.of(agreed), **changed)
    return b"".join(seal.seal(key, 3, 0, model().chunks()))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "node"
    path.parent.mkdir(mode=0o700)
    Store(path).write(f"epochs/{epoch(1).id.hex()}", epoch(1).to_bytes())
    return path


@pytest.fixture
def box(tmp_path: Path) -> Path:
    path = tmp_path / "model.flhe"
    path.write_bytes(sealed_by(epoch(1)))
    return path


def test_opens_with_a_directory_one_above_it_or_the_file(home: Path, box: Path) -> None:
    file = home / "epochs" / epoch(1).id.hex()
    for key in (home, home.parent, home.parent.parent, file):
        opened = open_checkpoint(box, key)
        np.testing.assert_array_equal(opened.masters["w"], model().masters["w"])


def test_refusals(home: Path, box: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    Store(other).write(f"epochs/{epoch(2).id.hex()}", epoch(2).to_bytes())
    (tmp_path / "nothing").mkdir()
    for sealed, key, says in (
        (tmp_path / "none", home, "cannot be read"),
        (box, tmp_path / "none", "no such file or directory"),
        (box, tmp_path / "nothing", "no key of epoch 01010101"),
        (box, other / "epochs" / epoch(2).id.hex(), "a key of another epoch"),
    ):
        with pytest.raises(ConfigError, match=says):
            open_checkpoint(sealed, key)
    data = bytearray(sealed_by(epoch(1)))
    data[-20] ^= 1
    for content, error, says in (
        (sealed_by(epoch(1), run_id=RUN - 1), ProtocolError, "run_id"),
        (data, AuthenticationError, "cut short"),
    ):
        box.write_bytes(content)
        with pytest.raises(error, match=says):
            open_checkpoint(box, home)


def test_npz_and_pt_hold_the_arrays_for_their_owner_only(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    npz, pt = tmp_path / "m.npz", tmp_path / "m.pt"
    write_model(model(), npz)
    write_model(model(), pt)
    assert stat.S_IMODE(npz.stat().st_mode) == stat.S_IMODE(pt.stat().st_mode) == 0o600
    arrays = np.load(npz)
    tensors = torch.load(pt, weights_only=True)
    assert list(arrays) == list(tensors) == ["w", "half", "brain", "steps", "empty"]
    assert (arrays["half"].dtype, arrays["brain"].dtype) == (np.float16, np.float32)
    assert tensors["brain"].dtype == torch.bfloat16
    assert arrays["brain"].tolist() == tensors["brain"].tolist() == [1.5, -2.25]
    assert arrays["steps"] == tensors["steps"] == 7
    assert tensors["empty"].shape == (0, 3)
    with pytest.raises(ConfigError, match=r"\.npz or \.pt"):
        write_model(model(), tmp_path / "m.onnx")
    with pytest.raises(ConfigError, match="cannot write in its directory"):
        write_model(model(), tmp_path / "none" / "m.npz")


SMALL = Model.initial({"w": np.arange(3, dtype=np.float32)})


def test_a_link_at_a_name_that_others_could_guess_is_not_followed(tmp_path: Path) -> None:
    out, victim = tmp_path / "model.npz", tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / ".model.npz.part").symlink_to(victim)
    write_model(SMALL, out)
    assert victim.read_bytes() == b"mine"
    assert not out.is_symlink()
    np.testing.assert_array_equal(np.load(out)["w"], SMALL.masters["w"])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("opened.npz", "in its directory: No space left: 0 bytes"),
        ("opened.pt", "needs torch"),
        ("sealed.npz", "in its directory: No space left: 0 bytes"),
    ],
)
def test_an_older_model_stays_where_a_new_one_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    """The error has the whole reason."""
    out = tmp_path / name
    out.write_bytes(b"older")

    def full(*_: object) -> None:
        raise OSError(28, "No space left: 0 bytes")

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=says):
        write_private(out, [b"newer"]) if "sealed" in name else write_model(SMALL, out)
    assert out.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [out]


def test_a_sealed_model_is_not_replaced_by_what_is_in_it(tmp_path: Path) -> None:
    sealed = tmp_path / "model.npz"
    sealed.write_bytes(b"sealed")
    assert "the sealed model itself" in bad("open", sealed, "--key", tmp_path)
    assert sealed.read_bytes() == b"sealed"


def test_arrays_of_any_name_are_written(tmp_path: Path) -> None:
    names = ("file", "allow_pickle", "b.npy", "layer/0.weight", "../up", "é", "")
    arrays = {name: np.full(2, at, np.float32) for at, name in enumerate(names)}
    write_model(Model.initial(arrays), tmp_path / "m.npz")
    with np.load(tmp_path / "m.npz") as found:
        assert {*found.files} == {*names}
        assert all(np.array_equal(found[name], arrays[name]) for name in names)
    for name, other in (("a", "a.npy"), ("a\0b", "c")):
        two = {other: np.zeros(1, np.float32), name: np.ones(1, np.float32)}
        with pytest.raises(ConfigError, match=r"cannot hold the array 'a.*write a \.pt file"):
            write_model(Model.initial(two), tmp_path / "two.npz")
        assert not list(tmp_path.glob("*two*"))
