"""A search of a capture is silent about what nodes really send, and loud about what leaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe.coding.base import Plain
from flhe.coding.update import update_codec
from flhe.keys.agreement.states import Epoch
from flhe.node.store import Store
from flhe.schemes.base import Scheme
from flhe.schemes.batchcrypt.adder import BatchCryptSealer
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.flashe.adder import FlasheAdder
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sash.scheme import Sash
from flhe.schemes.seal_adder import PolynomialMasks
from flhe.schemes.sealed import Sealed, Slot
from flhe.training.terms import Terms
from flhe_lab.rehearsal import app as loopback_app
from flhe_lab.rehearsal.lanes import open_without_keys, quantized, unencrypted
from flhe_lab.rehearsal.node_secrets import GROUP, PAIR
from flhe_lab.rehearsal.search import Search, Secrets
from flhe_lab.rehearsal.traffic import COUNT, OPEN, opened, search
from flhe_lab.rehearsal.updates import LANES, layout
from flhe_lab.rehearsal.verdict import expected
from tests.roles import Roles, roles_of
from tests.sim.rehearsal.captured import PLAN, capture, hide_nothing


def test_nothing_is_found_in_what_nodes_send(tmp_path: Path) -> None:
    traffic = search(capture(tmp_path))
    assert traffic.found == ()
    assert traffic.missing == ()
    assert all(traffic.controls.values()), traffic.controls
    least = expected(PLAN)
    assert all(traffic.searched.get(kind, 0) >= count for kind, count in least.items())


def test_updates_under_masks_of_zero_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole of the real node's code, with a keystream that is nothing."""
    hide_nothing(monkeypatch)
    traffic = search(capture(tmp_path))
    found = [each for each in traffic.found if each.kind == LANES]
    assert {each.kind for each in traffic.found} == {LANES}
    assert sum(each.place.startswith("array") for each in found) == 3
    assert all(each.count > 1000 for each in found)


def _pair(loopback: Any) -> bytes:
    store = Store(loopback.home("site-a"))
    first, second, _ = Epoch.from_bytes(store.read(store.names("epochs/*")[0])).pair_keys
    return bytes(second) or bytes(first)


PLANTED: dict[str, Callable[[Any], bytes]] = {
    GROUP: lambda it: repr(bytes(*it.secrets.kinds[GROUP])).encode(),
    PAIR: lambda it: str(list(_pair(it))).encode(),
    COUNT: lambda it: b"trained on 267435452 examples",
}


def test_whatever_is_planted_in_a_log_is_found(tmp_path: Path) -> None:
    """All at once, a line each."""
    loopback = capture(tmp_path, lambda it: b"\n".join(make(it) for make in PLANTED.values()))
    found = {each.kind: each.count for each in search(loopback).found}
    assert set(found) == set(PLANTED)
    assert found[GROUP] >= 25
    assert found[PAIR] >= 25


# --- an update that travels without encryption is found, whatever scheme was to encrypt it ---

SIZE = 600
COHORT = 3
SLOT = Slot(7, bytes(32), bytes(16), 1, 0, bytes(32), bytes(32))
EXTRAS = np.array([1, 2, 3], np.int16)
LENGTH = SIZE + EXTRAS.size
KEY = bytes(range(32))
OURS: tuple[Scheme, ...] = (Flashe(), Sash(), Esafl(keys="round"), BatchCrypt(2048), FedmlHe())
SCHEMES = {scheme.name: scheme for scheme in OURS}


def roles(name: str) -> Roles:
    bits = 16 if name == "sash" else None
    return roles_of(COHORT, KEY, 1, False, scheme=SCHEMES[name], bits=bits)


def integers(seed: int) -> Any:
    """Values as a client encrypts them."""
    return np.random.default_rng(seed).integers(-32767, 32768, SIZE).astype(np.int32)


def seal(name: str, values: Any) -> bytes:
    """What travels."""
    plain = Plain(values.astype(np.int16), EXTRAS)
    return roles(name).sealers[1].encrypt(plain, SLOT).data.tobytes()


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


def search_for(name: str, values: Any) -> Search:
    secrets = Secrets()
    secrets.add("update", *unencrypted(roles(name).adder, values, EXTRAS.size))
    return Search(secrets)


@pytest.mark.parametrize("name", SCHEMES)
def test_real_ciphertexts_hold_nothing_and_do_not_open(name: str) -> None:
    data = seal(name, integers(1))
    assert search_for(name, integers(1)).find([("wire", data)]) == []
    assert list(opened([(roles(name).adder, LENGTH)], {"one": data})) == []


@pytest.mark.parametrize("name", SCHEMES)
def test_what_nothing_hides_is_found(name: str, nothing_hides: None) -> None:
    """By its windows in FLASHE's lanes, and by opening without a key where a scheme can."""
    adder = roles(name).adder
    sent = np.clip(integers(1) + np.random.default_rng(2).integers(0, 2, SIZE), -32767, 32767)
    data = seal(name, sent)
    windows = sum(each.count for each in search_for(name, integers(1)).find([("wire", data)]))
    (there,) = [*opened([(adder, LENGTH)], {"one": data}), None][:1]
    if name == "flashe":
        assert windows >= 10
    else:
        assert there is not None
        assert (there.kind, there.count) == (OPEN, LENGTH)
        body = np.frombuffer(data, np.uint8)
        read = open_without_keys(adder, Sealed(adder.name, SLOT, (1,), LENGTH, body))
        assert read is not None
        assert np.array_equal(read[:SIZE], sent)


@pytest.mark.parametrize("name", SCHEMES)
def test_integers_are_found_in_any_layout(name: str) -> None:
    values = integers(1)
    search = search_for(name, values)
    for kind in ("<i2", ">i2", "<i4", ">i4"):
        assert search.find([("wire", values[100:200].astype(kind).tobytes())])
    others = integers(5)
    for kind in ("<i2", "<i4"):
        assert search.find([("wire", others.astype(kind).tobytes())]) == []


def test_whole_blocks_are_packed_as_they_are(nothing_hides: None) -> None:
    """Beyond a block, words of its columns lie side by side."""
    adder = roles("flashe").adder
    assert isinstance(adder, FlasheAdder)
    size = adder.packing.block + 300
    values = np.random.default_rng(3).integers(-32767, 32768, size).astype(np.int32)
    (found,) = search_for("flashe", values).find([("wire", seal("flashe", values))])
    assert found.count > 0.95 * size * adder.lane_bits / 8


def test_an_update_is_quantized_as_clients_do_but_for_rounding() -> None:
    most = loopback_app.MAX_EXAMPLES
    terms = Terms(codec=update_codec(clip=loopback_app.CLIP, max_examples=most))
    update, examples = loopback_app.update("flashe", 1, 1, SIZE), loopback_app.examples(1)
    ours = quantized(terms, layout(SIZE), update, examples)
    weight = examples / most
    exact = update.astype(np.float64) / loopback_app.CLIP * weight * 32767
    assert np.abs(ours - exact).max() < 0.51
