"""The laws, for every scheme that there is."""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from secrets import token_bytes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.coding.base import Integers, Plain
from flhe.coding.chain import Chain
from flhe.coding.clip import Clip
from flhe.coding.quantize import Quantize
from flhe.coding.support import Support
from flhe.coding.weigh import Weigh
from flhe.errors import ConfigError, ProtocolError, RangeError, ReuseError
from flhe.schemes.base import Adder, Opener, fits
from flhe.schemes.esafl.adder import EsaflAdder
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sash.scheme import Sash
from flhe.schemes.sealed import Sealed, Slot
from tests.laws import (
    FEW_SCHEMES,
    KEY,
    LAYOUT,
    OTHER_KEY,
    OTHER_SLOTS,
    SCHEMES,
    SLOT,
    SchemeCase,
    add_up,
    joined,
    random_plain,
    sum_of,
    sums_open,
)
from tests.roles import holds
from tests.scripted import PyCryptodome, streams

every_scheme = pytest.mark.parametrize("case", SCHEMES, ids=lambda case: case.id)
some_schemes = pytest.mark.parametrize("case", FEW_SCHEMES, ids=lambda case: case.id)
RNG_SEED = 11


def numbers(values: int, extras: int = 0) -> Plain:
    """Small numbers that any scheme carries."""
    lanes = np.arange(values + extras, dtype=np.int32) % 3 - 1
    return Plain(lanes[:values], lanes[values:])


# --- schemes: sums ---


@every_scheme
def test_any_subset_opens_to_its_sum(case: SchemeCase) -> None:
    sums_open(case, 3, 23, 4, RNG_SEED)


@some_schemes
def test_lengths_around_block_borders(case: SchemeCase) -> None:
    lengths = [(0, 0), (1, 0), (0, 1)]
    for around in (case.block, 2 * case.block):
        lengths += [(around + d, e) for d, e in ((-1, 0), (0, 0), (1, 0), (-3, 3), (-1, 2))]
    lengths.append((5, case.block + 1))  # extras that fill a block of their own
    for values, extras in lengths:
        sums_open(case, 2, values, extras, RNG_SEED)


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(SCHEMES),
    st.integers(2, 40),
    st.integers(0, 200),
    st.integers(0, 20),
    st.integers(0, 2**32 - 1),
)
def test_anything_adds_up(
    case: SchemeCase, cohort: int, values: int, extras: int, seed: int
) -> None:
    sums_open(case, min(cohort, case.most), values, extras, seed)


@some_schemes
def test_a_full_sum_at_both_ends_of_the_space_does_not_wrap(case: SchemeCase) -> None:
    for cohort in (2, 3, 8, 9):
        adder, sealers, opener = case.roles(cohort)
        assert isinstance(adder.space, Integers)
        bound = adder.space.bound
        lanes = np.array([bound, -bound, 0], np.int32)
        parts = [sealer.encrypt(Plain(lanes, lanes[:0]), SLOT) for sealer in sealers]
        total = sum_of(adder, parts)
        assert opener.decrypt(total).tolist() == [cohort * bound, -cohort * bound, 0]


# --- schemes: the same bytes ---


@some_schemes
def test_prepared_threaded_and_other_backends_give_the_same_bytes(
    case: SchemeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(RNG_SEED)
    values = (
        3 * case.block + case.many
    )  # blocks for each thread, and more than one piece of keystream
    plain = random_plain(case.roles(3, same=True).adder, values, 9, rng)
    ciphertexts = set()
    for threads, other, ahead in (
        (1, False, False),
        (3, False, False),
        (1, False, True),
        (1, True, False),
        (3, True, True),
    ):
        if other:
            streams(monkeypatch, PyCryptodome)
        _, sealers, opener = case.roles(3, KEY, threads, same=True)
        if ahead:
            sealers[1].prepare(SLOT, values + 9)
        sealed = sealers[1].encrypt(plain, SLOT)
        ciphertexts.add(sealed.data.tobytes())
        assert np.array_equal(opener.decrypt(sealed), joined(plain))
    assert len(ciphertexts) == (5 if case.redraws else 1)


@some_schemes
def test_masks_prepared_for_something_else_are_not_used(case: SchemeCase) -> None:
    plain = numbers(50, 3)
    expected = case.roles(3)[1][2].encrypt(plain, SLOT).data.tobytes()
    _, sealers, opener = case.roles(3)
    for slot in OTHER_SLOTS.values():
        sealers[2].prepare(slot, 53)
    sealers[2].prepare(SLOT, 52)
    sealed = sealers[2].encrypt(plain, SLOT)
    assert np.array_equal(opener.decrypt(sealed), joined(plain))
    assert case.fresh or sealed.data.tobytes() == expected


@some_schemes
def test_every_part_of_a_slot_changes_the_mask(case: SchemeCase) -> None:
    assert set(OTHER_SLOTS) == {f.name for f in dataclasses.fields(Slot)}
    plain = numbers(40)
    slots = [SLOT, *OTHER_SLOTS.values()]
    seen = {case.roles(3)[1][0].encrypt(plain, slot).data.tobytes() for slot in slots}
    seen |= {s.encrypt(plain, SLOT).data.tobytes() for s in case.roles(3)[1][1:]}
    seen.add(case.roles(3, OTHER_KEY)[1][0].encrypt(plain, SLOT).data.tobytes())
    assert len(seen) == len(slots) + 3
    again = case.roles(3)[1][0].encrypt(plain, SLOT).data.tobytes()
    assert (again in seen) is not case.fresh


@some_schemes
def test_zeros_look_like_chance(case: SchemeCase) -> None:
    """No two coordinates share a mask, near or far: what is sent of zeros does not compress."""
    adder, sealers, _ = case.roles(3)
    length = next(size for size in (600, 6000, 60000) if adder.nbytes(size) > 1000)
    plain = Plain(np.zeros(length, np.int32), np.empty(0, np.int64))
    data = sealers[0].encrypt(plain, SLOT).data.tobytes()
    assert len(zlib.compress(data, 9)) > 0.9 * len(data)


@some_schemes
def test_what_carries_sparse_vectors_opens_them(case: SchemeCase) -> None:
    """And what does not says why."""
    adder, sealers, opener = case.roles(3)
    if adder.scheme.dense:
        pytest.skip("dense vectors only")
    supports = [
        Support.of(np.arange(rank, 90, 3 + rank, dtype=np.uint32), 100) for rank in range(2)
    ]
    total = None
    for sealer, support in zip(sealers, supports, strict=False):
        values = np.full(support.count, 1 - 2 * sealer.rank, np.int32)
        plain = Plain(values, np.array([1], np.int64), support.coords)
        part = sealer.encrypt(plain, SLOT, mode=adder.scheme.mode_ahead, support=support)
        total = adder.add(total, part)
    assert total is not None
    dense = np.zeros(100, np.int64)
    for rank, support in enumerate(supports):
        dense[support.coords] += 1 - 2 * rank
    union = np.unique(np.concatenate([s.coords for s in supports]))
    assert opener.decrypt(adder.close(total)).tolist() == [*dense[union], 2]


# --- schemes: refusals ---


@some_schemes
def test_what_is_not_of_its_kind_is_refused_and_leaves_the_sum_as_it_was(case: SchemeCase) -> None:
    adder, sealers, opener = case.roles(3)
    one, other, last = (sealer.encrypt(numbers(30), SLOT) for sealer in sealers)
    total = adder.add(None, one)
    before = total.data.copy()
    kinds: list[tuple[dict[str, Any], str]] = [
        ({"scheme": "plain"}, "'plain'"),
        ({"senders": (3,)}, "sender 3 is not in the cohort of 3"),
        ({"senders": (1, 3)}, "sender 3"),
        ({"data": other.data[:-1]}, "bytes"),
        ({"data": np.append(other.data, np.uint8(0))}, "bytes"),
        ({"length": one.length + case.block}, "bytes"),
    ]
    for change, says in kinds:
        bad = dataclasses.replace(other, **change)
        for under_way in (None, total):
            with pytest.raises(ProtocolError, match=says):
                adder.add(under_way, bad)
        with pytest.raises(ProtocolError, match=says):
            opener.decrypt(bad)
    for slot in OTHER_SLOTS.values():
        with pytest.raises(ProtocolError, match="slot"):
            adder.add(total, dataclasses.replace(other, slot=slot))
    with pytest.raises(ProtocolError, match="length"):
        adder.add(total, case.roles(3)[1][1].encrypt(numbers(31), SLOT))
    with pytest.raises(ReuseError, match="sender 0 is already"):
        adder.add(total, one)
    assert np.array_equal(total.data, before)
    total = adder.add(total, other)
    with pytest.raises(ReuseError, match="sender 1 is already"):
        adder.add(total, adder.add(adder.add(None, last), other))
    assert opener.decrypt(adder.add(total, last)).tolist() == (3 * numbers(30).values).tolist()


@some_schemes
def test_ciphertexts_that_were_received_need_not_be_aligned(case: SchemeCase) -> None:
    def received(sealed: Sealed, shift: int) -> Sealed:
        data = np.empty(sealed.data.size + 64, np.uint8)
        start = -data.ctypes.data % 64 + shift
        data = data[start : start + sealed.data.size]
        data[:] = sealed.data
        return Sealed.from_parts(sealed.header(), data)

    adder, sealers, opener = case.roles(3)
    parts = [s.encrypt(numbers(30), SLOT) for s in sealers]
    total = adder.add(received(parts[0], 1), received(parts[1], 2))
    total = received(adder.add(total, parts[2]), 3)
    assert opener.decrypt(total).tolist() == (3 * numbers(30).values).tolist()


@some_schemes
def test_one_slot_encrypts_once(case: SchemeCase) -> None:
    _, sealers, _ = case.roles(3)
    sealers[0].encrypt(numbers(5), SLOT)
    for again in (numbers(5), numbers(6)):
        sealers[0].prepare(SLOT, again.values.size)
        with pytest.raises(ReuseError):
            sealers[0].encrypt(again, SLOT)
    for slot in OTHER_SLOTS.values():
        sealers[0].encrypt(numbers(5), slot)


@some_schemes
def test_what_is_refused_spends_no_slot_and_shows_no_value(case: SchemeCase) -> None:
    adder, sealers, opener = case.roles(3)
    assert isinstance(adder.space, Integers)
    bound, good = adder.space.bound, np.zeros(3, np.int32)
    for kind in (np.int32, np.int64):
        least, most = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
        beyond = [bound + 1, bound + 1_234_567, 1 << 32, (1 << 32) + 1, 1 << 40, most]
        for bad in (*beyond, *(-x for x in beyond), least):
            if abs(bad) <= bound or not least <= bad <= most:
                continue
            lane, nothing, filled = (np.zeros(size, kind) for size in (1, 0, case.block))
            lane[0] = filled[-1] = bad
            for parts in ((lane, nothing), (nothing, lane), (filled, nothing), (good, lane)):
                with pytest.raises(RangeError) as caught:
                    sealers[0].encrypt(Plain(*parts), SLOT)
                assert str(abs(bad)) not in str(caught.value).replace("_", "").replace(",", "")
    for real_kind in (np.float32, np.float64, np.uint32, np.bool_, np.complex64):
        real = np.array([0.12345, 0, 0]).astype(real_kind)
        for plain in (Plain(real, good), Plain(good, real)):
            with pytest.raises(RangeError, match="quantize first") as caught:
                sealers[0].encrypt(plain, SLOT)
            assert "12345" not in str(caught.value)
    sealed = sealers[0].encrypt(numbers(5), SLOT)
    assert opener.decrypt(sealed).tolist() == numbers(5).values.tolist()


@some_schemes
def test_modes_and_sparse_vectors_where_there_are_none(case: SchemeCase) -> None:
    adder, sealers, opener = case.roles(3)
    plain, support = numbers(2), Support.of(np.array([0, 2], np.uint32), 4)
    with pytest.raises(ProtocolError, match=r"mode|masking is fixed"):
        adder.check_mode("double")
    with pytest.raises(ProtocolError, match=r"mode|masking is fixed"):
        sealers[0].prepare(SLOT, 2, mode="double")
    refused: list[tuple[Plain, dict[str, Any], str]] = [(plain, {"mode": "double"}, "mode|fixed")]
    changes: list[tuple[dict[str, Any], str]] = [({"mode": "single"}, "mode|masking is fixed")]
    if not case.sparse:
        refused += [(plain, {"support": support}, "sparse values")]
        refused += [(plain._replace(coords=support.coords), {}, "sparse values")]
        changes += [({"supports": (support,)}, "a sparse ciphertext")]
    for values, how, says in refused:
        with pytest.raises(ProtocolError, match=says):
            sealers[0].encrypt(values, SLOT, **how)
    sealed, other = (sealer.encrypt(plain, SLOT) for sealer in sealers[:2])  # nothing was spent
    for change, says in changes:
        told = dataclasses.replace(sealed, **change)
        for total in (None, adder.add(None, other)):
            with pytest.raises(ProtocolError, match=says):
                adder.add(total, told)
        with pytest.raises(ProtocolError, match=says):
            opener.decrypt(told)


@some_schemes
def test_a_random_source_that_gives_another_number_of_bytes(case: SchemeCase) -> None:
    """Too few would be a weaker seed or error, none at all no mask. By default it is the system's."""
    sealer: Any = case.roles(3).sealers[0]
    default = {f.name: f.default for f in dataclasses.fields(sealer)}
    assert default.get("random", token_bytes) is token_bytes
    for source in (lambda n: b"", lambda n: bytes(n - 8), lambda n: bytes(n + 8)):
        if "random" in default:
            wrong = dataclasses.replace(sealer, random=source)
            with pytest.raises((ConfigError, ProtocolError)):
                wrong.encrypt(numbers(2), SLOT)


@some_schemes
def test_a_seed_is_taken_once(case: SchemeCase) -> None:
    sealer: Any = case.roles(3)[1][0]
    if not case.forgets:
        sealer.encrypt(numbers(3), SLOT)
        with pytest.raises(ReuseError, match="no key"):
            sealer.take_seed(SLOT)
        return
    other = OTHER_SLOTS["attempt"]
    for ahead in (False, True):  # what was prepared alone encrypted nothing
        if ahead:
            sealer.prepare(SLOT, 3)
        with pytest.raises(ReuseError, match="no key"):
            sealer.take_seed(SLOT)
    for slot in (SLOT, other):
        sealer.encrypt(numbers(3), slot)
    seed = sealer.take_seed(SLOT)
    for _ in range(2):
        with pytest.raises(ReuseError, match="taken before"):
            sealer.take_seed(SLOT)
    assert not np.array_equal(sealer.take_seed(other), seed)


# --- schemes: the wrong senders, the wrong key ---


@some_schemes
@pytest.mark.parametrize("fuse", [True, False])
def test_wrong_senders_or_key_are_refused(case: SchemeCase, fuse: bool) -> None:
    """By the opener, or where noise comes out, by the codec."""
    rng = np.random.default_rng(RNG_SEED)
    adder, sealers, opener = case.roles(4)
    codec = Chain((Clip(1.0), Weigh(50), Quantize(int(adder.parameters()["bits"]))), fuse=fuse)
    fits(codec, adder, 4)
    state, strangers = codec.init(LAYOUT), case.roles(4, OTHER_KEY).opener
    updates = rng.uniform(-1, 1, (4, LAYOUT.floats)).astype(np.float32)
    plains = [codec.encode(Plain(x, np.array([1, 20])), state)[0] for x in updates]
    parts = [s.encrypt(p, SLOT) for s, p in zip(sealers, plains, strict=True)]

    def decode(reader: Opener, total: Sealed) -> Plain:
        lanes = reader.decrypt(total)
        split = LAYOUT.floats
        return codec.decode(Plain(lanes[:split], lanes[split:]), total.senders, state)[0]

    def is_refused(reader: Opener, total: Sealed) -> None:
        with pytest.raises(ProtocolError, match="refused"):
            decode(reader, total)

    every = [s for n in range(1, 5) for s in itertools.combinations(range(4), n)]
    for senders in ((0,), (0, 1), (1, 3), (0, 1, 3), (0, 1, 2, 3)):
        total = add_up(adder, [parts[i] for i in senders], rng)
        assert decode(opener, total).extras.tolist() == [len(senders), 20 * len(senders)]
        is_refused(strangers, total)
        if case.tags_alone:
            continue
        for others in every:
            if others != senders:
                is_refused(opener, dataclasses.replace(total, senders=others))
        for slot in OTHER_SLOTS.values():
            is_refused(opener, dataclasses.replace(total, slot=slot))


# --- schemes: who holds what ---


@every_scheme
def test_the_server_holds_no_key_and_no_repr_shows_one(case: SchemeCase) -> None:
    adder, sealers, opener = case.roles(3)
    sealers[0].prepare(SLOT, 20)
    text = repr(sealers[0])
    total = adder.add(None, sealers[0].encrypt(numbers(20), SLOT))
    total = adder.add(total, sealers[1].encrypt(numbers(20), SLOT))
    secrets = [*case.secrets(sealers[0]), *case.secrets(sealers[1])]
    opener.decrypt(total)
    sealers[0].prepare(OTHER_SLOTS["round"], 20)
    assert holds(opener, secrets), "this test looks in the wrong places"
    # A seed is taken once, and forgotten; under a key that nobody has, nothing secret is needed.
    assert holds(sealers[0], secrets) is not (case.forgets or case.shared)
    assert not holds(adder, secrets)
    assert not holds(total, secrets)
    assert not any(secret in total.header() for secret in secrets)
    for shown in (text, repr(sealers[0]), str(sealers[0]), repr(opener), repr(adder), repr(total)):
        assert "group_key" not in shown
        for secret in secrets:
            assert repr(secret)[2:-1] not in shown
            assert secret.hex() not in shown
            assert str(int.from_bytes(secret[:8], "little")) not in shown
    with pytest.raises(AttributeError):
        adder.cohort = 4  # type: ignore[misc]


@every_scheme
def test_roles_are_of_their_protocols(case: SchemeCase) -> None:
    adder, sealers, _ = case.roles(3)
    assert isinstance(adder, Adder)
    assert [s.rank for s in sealers] == [0, 1, 2]
    assert adder.scheme.reader == case.reader
    assert adder.scheme.per_sum_keys is case.forgets
    assert adder.parameters()["name"] == adder.name
    with pytest.raises(ProtocolError, match="sender 3"):
        dataclasses.replace(sealers[0], rank=3)  # type: ignore[type-var]
    with pytest.raises(ProtocolError, match="sender -1"):
        dataclasses.replace(sealers[0], rank=-1)  # type: ignore[type-var]


def test_parameters_tell_all_schemes_apart() -> None:
    """They are hashed into the terms: cohort, bits, preset, reader, keys and their names."""
    schemes: list[Adder] = [case.roles(n).adder for case in SCHEMES for n in (3, 4)]
    schemes += [
        Flashe(masking="adaptive").adder(3, 16),
        Sash(unmask="clients").adder(3, 8),
        FedmlHe().adder(3, 16),
    ]
    schemes += [Esafl(keys=keys).adder(3, 16) for keys in ("joint", "dealt")]  # type: ignore[arg-type]
    schemes += [EsaflAdder(Esafl(keys="joint"), 3, 16, key_id=bytes([i]) * 32) for i in (0, 1)]
    assert len({repr(adder.parameters()) for adder in schemes}) == len(schemes)
