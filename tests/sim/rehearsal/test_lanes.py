"""An update that travels without encryption is found, whatever scheme was to encrypt it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from flhe.coding.base import Plain
from flhe.coding.update import update_codec
from flhe.schemes.base import Adder, Sealer
from flhe.schemes.batchcrypt.adder import BatchCryptAdder, BatchCryptSealer
from flhe.schemes.batchcrypt.keys import SecretKey
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.esafl.adder import EsaflSealer
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.fedml_he.adder import FedmlHeSealer
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.flashe.adder import FlasheAdder, FlasheSealer
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sash.adder import SashSealer
from flhe.schemes.sash.scheme import Sash
from flhe.schemes.seal_adder import PolynomialMasks
from flhe.schemes.seal_keys import SealSecret
from flhe.schemes.sealed import Sealed, Slot
from flhe.training.terms import Terms
from flhe_lab.rehearsal import app as loopback_app
from flhe_lab.rehearsal.lanes import open_without_keys, quantized, unencrypted
from flhe_lab.rehearsal.search import Search, Secrets
from flhe_lab.rehearsal.traffic import OPEN, opened
from flhe_lab.rehearsal.updates import layout
from tests.sim.rehearsal.captured import hide_nothing

SIZE = 600
COHORT = 3
SLOT = Slot(7, bytes(32), bytes(16), 1, 0, bytes(32), bytes(32))
EXTRAS = np.array([1, 2, 3], np.int16)
LENGTH = SIZE + EXTRAS.size
KEY = bytes(range(32))
PAIR = SecretKey.generate(2048)
CKKS = SealSecret.generate(FedmlHe().ring)


def integers(seed: int, exact: bool = True) -> Any:
    """Values as a client encrypts them: half of what is rounded is not rounded to nearest."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-32767, 32768, SIZE).astype(np.int32)
    return values if exact else np.clip(values + (rng.random(SIZE) < 0.25), -32767, 32767)


@dataclass
class Way:
    """One adder, and what seals under it."""

    adder: Adder
    sealer: Any

    def seal(self, values: Any, slot: Slot = SLOT) -> bytes:
        """What travels."""
        sealer: Sealer = self.sealer(self.adder)
        sealed = sealer.encrypt(Plain(values.astype(np.int16), EXTRAS), slot)
        return sealed.data.tobytes()


def ways() -> Iterator[tuple[str, Way]]:
    """All schemes."""
    yield "flashe", Way(Flashe().adder(COHORT), lambda a: FlasheSealer(a, KEY, 1))
    yield "sash", Way(Sash().adder(COHORT, 16), lambda a: SashSealer(a, 1))
    yield "esafl", Way(Esafl(keys="round").adder(COHORT), lambda a: EsaflSealer(a, KEY, 1))
    paillier = BatchCryptAdder(BatchCrypt(2048), COHORT, public=PAIR.public)
    yield "batchcrypt", Way(paillier, lambda a: BatchCryptSealer(a, PAIR, 1))
    yield "fedml-he", Way(FedmlHe().adder(COHORT), lambda a: FedmlHeSealer(a, CKKS, KEY, 1))


WAYS = dict(ways())


@pytest.fixture
def nothing_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks, keys and powers of every scheme are zeros, and ones."""
    hide_nothing(monkeypatch)
    zeros = np.zeros(Sash().elements(COHORT), np.uint64)
    monkeypatch.setattr("flhe.schemes.sash.adder.random_elements", lambda *_: zeros)
    nobody = np.zeros(Esafl(keys="round").adder(COHORT).dimension, np.int8)
    monkeypatch.setattr("flhe.schemes.esafl.keys.draw_own", lambda *_: nobody)
    monkeypatch.setattr(
        BatchCryptSealer,
        "_powers",
        lambda self, length, _: [1] * self.adder.batch.batches(length),
    )
    blocks = PolynomialMasks.blocks
    monkeypatch.setattr(
        PolynomialMasks, "blocks", lambda self, at, count: 0 * blocks(self, at, count)
    )


def search_for(way: Way, values: Any) -> Search:
    secrets = Secrets()
    secrets.add("update", *unencrypted(way.adder, values, EXTRAS.size))
    return Search(secrets)


@pytest.mark.parametrize("name", WAYS)
def test_real_ciphertexts_hold_nothing_and_do_not_open(name: str) -> None:
    way, values = WAYS[name], integers(1)
    data = way.seal(values)
    assert search_for(way, values).find([("wire", data)]) == []
    assert list(opened([(way.adder, LENGTH)], {"one": data})) == []


@pytest.mark.parametrize("name", WAYS)
def test_what_nothing_hides_is_found(name: str, nothing_hides: None) -> None:
    """By its windows in FLASHE's lanes, and by opening without a key where a scheme can."""
    way, values = WAYS[name], integers(1)
    sent = np.clip(integers(1) + np.random.default_rng(2).integers(0, 2, SIZE), -32767, 32767)
    data = way.seal(sent)
    windows = sum(each.count for each in search_for(way, values).find([("wire", data)]))
    (there,) = [*opened([(way.adder, LENGTH)], {"one": data}), None][:1]
    if name == "flashe":
        assert windows >= 10
    else:
        assert there is not None
        assert (there.kind, there.count) == (OPEN, LENGTH)
        body = np.frombuffer(data, np.uint8)
        read = open_without_keys(way.adder, Sealed(way.adder.name, SLOT, (1,), LENGTH, body))
        assert read is not None
        assert np.array_equal(read[:SIZE], sent)


@pytest.mark.parametrize("name", WAYS)
def test_integers_are_found_in_any_layout(name: str) -> None:
    way, values = WAYS[name], integers(1)
    search = search_for(way, values)
    for kind in ("<i2", ">i2", "<i4", ">i4"):
        assert search.find([("wire", values[100:200].astype(kind).tobytes())])
    others = integers(5)
    for kind in ("<i2", "<i4"):
        assert search.find([("wire", others.astype(kind).tobytes())]) == []


def test_whole_blocks_are_packed_as_they_are(nothing_hides: None) -> None:
    """Beyond a block, words of its columns lie side by side."""
    way = WAYS["flashe"]
    adder = way.adder
    assert isinstance(adder, FlasheAdder)
    size = adder.packing.block + 300
    values = np.random.default_rng(3).integers(-32767, 32768, size).astype(np.int32)
    (found,) = search_for(way, values).find([("wire", way.seal(values))])
    assert found.count > 0.95 * size * adder.lane_bits / 8


def test_an_update_is_quantized_as_clients_do_but_for_rounding() -> None:
    most = loopback_app.MAX_EXAMPLES
    terms = Terms(codec=update_codec(clip=loopback_app.CLIP, max_examples=most))
    update, examples = loopback_app.update("flashe", 1, 1, SIZE), loopback_app.examples(1)
    ours = quantized(terms, layout(SIZE), update, examples)
    weight = examples / most
    exact = update.astype(np.float64) / loopback_app.CLIP * weight * 32767
    assert np.abs(ours - exact).max() < 0.51
