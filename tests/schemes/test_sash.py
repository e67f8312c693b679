"""SASH: parameters, exact sums at any cohort, wrong seeds that are always told, and what is shown."""

from __future__ import annotations

import dataclasses
import functools
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.spaces import Integers
from flhe.coding.support import Support
from flhe.errors import ConfigError, ProtocolError, RangeError, ReuseError
from flhe.keys.agreement import masking
from flhe.math.prg import AesCtr
from flhe.math.ring import Q, add
from flhe.schemes.presets import BAR, DEFAULT_SASH, SASH, SashPreset, sash_preset
from flhe.schemes.sash.generator import Shprg, public_key
from flhe.schemes.sash.scheme import MAX_COHORT, Sash, SashOpener, SashSealer, guard_bits, most_bits
from flhe.schemes.sealed import Sealed, Slot
from tests.laws import OTHER_SLOTS, SLOT
from tests.rounds.test_session import group

NOTHING = np.empty(0, np.int32)
Lanes = NDArray[np.int32]


def drawn(number: int) -> Callable[[int], bytes]:
    """A source of seeds that is the same each time: one stream each."""
    stream = AesCtr().stream(bytes(range(32)), number)

    def draw(count: int) -> bytes:
        out = np.empty(count + 16, np.uint8)
        stream.into(out, count)
        return out[:count].tobytes()

    return draw


def plain(lanes: Any) -> Plain:
    return Plain(np.asarray(lanes, np.int32), NOTHING)


def sum_up(
    scheme: Sash, vectors: Iterator[Lanes], draw: bool = False
) -> tuple[Sealed, list[NDArray[np.uint64]], NDArray[np.int64]]:
    """Real ciphertexts of all members, added up; their seeds; the sum in plain."""
    total, seeds, expected = None, [], np.zeros(0, np.int64)
    for rank, lanes in enumerate(vectors):
        sealer = SashSealer(scheme, rank, random=drawn(rank) if draw else secrets.token_bytes)
        total = scheme.add(total, sealer.encrypt(plain(lanes), SLOT))
        seeds.append(sealer.take_seed(SLOT))
        expected = lanes.astype(np.int64) if rank == 0 else expected + lanes
    assert total is not None
    return total, seeds, expected


def summed(seeds: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    return functools.reduce(add, seeds)


# --- parameters ---


@pytest.mark.parametrize(
    ("cohort", "bits"), [(10, 24), (50, 20), (100, 18), (256, 15), (1000, 12), (1024, 11)]
)
def test_bits_that_a_cohort_leaves_room_for(cohort: int, bits: int) -> None:
    assert most_bits(cohort) == Sash(cohort).bits == bits
    assert Sash(cohort).space == Integers(2 ** (bits - 1) - 1)


def test_every_cohort_has_room_for_its_sum_its_error_and_a_wrong_key() -> None:
    for cohort in range(2, MAX_COHORT + 1):
        g, bits = guard_bits(cohort), most_bits(cohort)
        bound = (cohort + 1) // 2
        assert 2**g >= cohort + 2
        assert bound < 2 ** (g - 1)  # no error is taken for another value
        most = cohort * (2 ** (bits - 1) - 1)
        assert 2**g * most + bound < 2**31
        assert -(2**g) * most - bound >= -(2**31)
        assert ((2 * bound + 1) / 2**g) ** 1000 < 0.001  # a wrong key, on 1,000 values
        assert bits >= 11
        scheme = Sash(cohort)
        assert (scheme.guard, scheme.bits) == (g, bits)


def test_no_guard_bit_is_spare() -> None:
    """One fewer would not hold the error, or would let a wrong key pass once in 20,000 times."""
    for cohort in range(2, MAX_COHORT + 1):
        g = guard_bits(cohort) - 1
        residues = 2 * ((cohort + 1) // 2) + 1
        assert 2**g < cohort + 2 or (residues / 2**g) ** 1000 > 1 / 24_000
        assert 32 - guard_bits(cohort) - most_bits(cohort) == (cohort - 1).bit_length()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"cohort": 1}, r"cohort=1\): cohort must be 2 to 1024"),
    ({"cohort": 0}, "cohort must be 2 to 1024"),
    ({"cohort": -5}, "cohort must be 2 to 1024"),
    ({"cohort": 1025}, "cohort must be 2 to 1024"),
    (
        {"cohort": 10, "bits": 25},
        r"bits=25\): a sum of 10 values has room for 2 to 24 bits; bits=0",
    ),
    ({"cohort": 10, "bits": 1}, "room for 2 to 24 bits"),
    ({"cohort": 10, "bits": -1}, "room for 2 to 24 bits"),
    ({"cohort": 1000, "bits": 13}, "room for 2 to 12 bits"),
    ({"cohort": 10, "preset": "lwr-512"}, "'lwr-512': SASH has ring-2048, lwr-736, lwr-1024"),
    ({"cohort": 10, "preset": ""}, "SASH has"),
    ({"cohort": 10, "unmask": "all"}, "unmask is 'server' or 'clients'"),
]


@pytest.mark.parametrize(("parameters", "says"), REFUSED, ids=str)
def test_parameters_that_cannot_work(parameters: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Sash(**parameters)


def test_presets() -> None:
    assert DEFAULT_SASH in SASH
    for name, preset in SASH.items():
        assert (name, preset) == (preset.name, sash_preset(name))
        assert preset.security >= BAR
        assert Sash(10, preset=name).parameters_of_prg is preset


@pytest.mark.parametrize(
    ("form", "dimension", "security", "says"),
    [
        ("matrix", 512, 128, "mu >= 736"),
        ("matrix", 735, 128, "mu >= 736"),
        ("matrix", 4097, 128, "mu >= 736"),
        ("matrix", 736, 127, "127 bits of security, 128 are needed"),
        ("ring", 1024, 128, "2048, 4096 or 8192"),
        ("ring", 2049, 128, "2048, 4096 or 8192"),
        ("ring", 16384, 128, "2048, 4096 or 8192"),
    ],
)
def test_presets_below_the_bar(form: Any, dimension: int, security: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SashPreset("own", form, dimension, security, "a guess")


def test_what_is_public_is_hashed() -> None:
    schemes = [
        Sash(10),
        Sash(11),
        Sash(10, 8),
        Sash(10, preset="lwr-736"),
        Sash(10, unmask="clients"),
    ]
    told = [scheme.parameters() for scheme in schemes]
    assert all(told.count(parameters) == 1 for parameters in told)
    assert Sash(10).parameters() == Sash(10, 24).parameters()
    assert Sash(10).phases == ("consist", "unmask")
    assert Sash(10).nbytes(1000) == 4000
    assert (Sash(10).reader, Sash(10, unmask="clients").reader) == ("server", "clients")


# --- exact sums ---


def kinds(scheme: Sash, length: int) -> dict[str, Callable[[int], Lanes]]:
    """Rank -> vector, by kind."""
    most = scheme.space.bound
    mixed = np.where(np.arange(length) % 2, most, -most).astype(np.int32)
    rng = np.random.default_rng(3)
    return {
        "zero": lambda _: np.zeros(length, np.int32),
        "random": lambda _: rng.integers(-most, most + 1, length).astype(np.int32),
        "all at the top": lambda _: np.full(length, most, np.int32),
        "all at the bottom": lambda _: np.full(length, -most, np.int32),
        "mixed": lambda rank: mixed if rank % 2 else -mixed,
        "mixed, all alike": lambda _: mixed,
    }


@pytest.mark.parametrize("cohort", [2, 3, 10, 100, 256, 1000])
def test_sums_are_exact(cohort: int) -> None:
    scheme = Sash(cohort)
    for name, vector in kinds(scheme, 2500).items():
        total, seeds, expected = sum_up(scheme, (vector(rank) for rank in range(cohort)))
        opened = SashOpener(scheme, summed(seeds)).decrypt(total)
        assert opened.dtype == np.int32
        assert np.array_equal(opened, expected), name


@pytest.mark.parametrize("preset", ["lwr-736", "lwr-1024"])
@pytest.mark.parametrize("cohort", [2, 10, 100])
def test_sums_of_the_matrix_form_are_exact(cohort: int, preset: str) -> None:
    scheme = Sash(cohort, preset=preset)
    for name, vector in kinds(scheme, 150).items():
        total, seeds, expected = sum_up(scheme, (vector(rank) for rank in range(cohort)))
        opened = SashOpener(scheme, summed(seeds)).decrypt(total)
        assert np.array_equal(opened, expected), name


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 40), st.integers(0, 300), st.data())
def test_any_set_of_senders_is_exact(cohort: int, length: int, data: st.DataObject) -> None:
    scheme = Sash(cohort, data.draw(st.integers(2, most_bits(cohort))))
    senders = data.draw(st.sets(st.integers(0, cohort - 1), min_size=1))
    rng = np.random.default_rng(cohort)
    total, seeds, expected = None, [], np.zeros(length, np.int64)
    for rank in senders:
        lanes = kinds(scheme, length)["random"](rank) // rng.integers(1, 3)
        sealer = SashSealer(scheme, rank)
        total = scheme.add(total, sealer.encrypt(plain(lanes), SLOT))
        seeds.append(sealer.take_seed(SLOT))
        expected += lanes
    assert total is not None
    assert np.array_equal(SashOpener(scheme, summed(seeds)).decrypt(total), expected)


# --- what the homomorphism adds ---


def residuals(scheme: Sash, count: int, length: int) -> NDArray[np.int64]:
    """G(k_1) + ... + G(k_n) - G(k_1 + ... + k_n), around zero."""
    generator, masks, seeds = scheme.generator(SLOT), np.zeros(length, np.uint32), []
    for i in range(count):
        seeds.append(SashSealer(scheme, 0, random=drawn(i))._mask(SLOT, 0)[0])
        masks += generator.expand(seeds[-1], length)
    return (masks - generator.expand(summed(seeds), length)).view(np.int32).astype(np.int64)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 10, 100])
def test_the_error_of_a_sum_stays_within_its_bound(count: int) -> None:
    """|e| <= (n + 1) / 2, and no smaller bound that grows with n would do for few."""
    off = residuals(Sash(100), count, 20_000)
    assert 2 * np.abs(off).max() <= count + 1
    if count <= 3:
        assert np.abs(off).max() == count // 2
    else:
        assert 0 < np.abs(off).max() < count
        assert off.var() == pytest.approx((count + 1) / 12, rel=0.1)


@pytest.mark.parametrize("cohort", [2, 3, 10, 62, 100, 1000])
def test_an_error_is_accepted_up_to_the_bound_and_refused_beyond_it(cohort: int) -> None:
    scheme = Sash(cohort)
    seed = SashSealer(scheme, 0, random=drawn(1))._mask(SLOT, 0)[0]
    masks = scheme.generator(SLOT).expand(seed, 5)
    for senders in {1, 2, cohort // 2 or 1, cohort}:
        bound, half = (senders + 1) // 2, 1 << (scheme.guard - 1)
        for e in range(-half, half):
            lanes = masks + (np.array([-9, -1, 0, 1, 9], np.int32) << scheme.guard).view(np.uint32)
            lanes += np.array([0, 0, 0, e, 0], np.int32).view(np.uint32)
            total = Sealed("sash", SLOT, tuple(range(senders)), 5, lanes.view(np.uint8))
            opener = SashOpener(scheme, seed)
            if abs(e) <= bound:
                assert opener.decrypt(total).tolist() == [-9, -1, 0, 1, 9]
            else:
                with pytest.raises(ProtocolError, match=f"off by more than the {bound} that"):
                    opener.decrypt(total)


# --- wrong seeds ---


def worst() -> list[int]:
    """For each number of guard bits the cohort whose error leaves the fewest residues that tell."""
    share = {n: (2 * ((n + 1) // 2) + 1) / 2 ** guard_bits(n) for n in range(2, MAX_COHORT + 1)}
    bits = {guard_bits(n) for n in share}
    return [max((n for n in share if guard_bits(n) == g), key=share.__getitem__) for g in bits]


WORST = sorted({62, 126, 254, 510, 1000, *(n for n in worst() if n >= 62)})


@pytest.mark.parametrize("cohort", WORST)
def test_a_wrong_sum_of_seeds_is_told_on_a_thousand_values(cohort: int) -> None:
    """2,000 of them at the cohorts where it is hardest; the right one opens."""
    scheme = Sash(cohort)
    zero = np.zeros(1000, np.int32)
    total, seeds, _ = sum_up(scheme, (zero for _ in range(cohort)), draw=True)
    right = summed(seeds)
    assert not SashOpener(scheme, right).decrypt(total).any()
    rng, told, trials = np.random.default_rng(cohort), 0, 2000
    for trial in range(trials):
        seed = right.copy()
        at, rank = int(rng.integers(seed.size)), int(rng.integers(cohort))
        kind = trial % 4
        if kind == 0:  # one element is off by one
            seed[at] = (int(seed[at]) + (1 if trial % 8 else Q - 1)) % Q
        elif kind == 1:  # a sender's is missing
            seed = add(seed, np.uint64(Q) - seeds[rank])
        elif kind == 2:  # one is there twice
            seed = add(seed, seeds[rank])
        else:  # an element is anything
            seed[at] = rng.integers(Q, dtype=np.uint64)
        try:
            SashOpener(scheme, seed).decrypt(total)
        except ProtocolError:
            told += 1
    assert told == trials


@pytest.mark.parametrize("field", ["run_id", "roster_hash", "epoch"])
def test_seeds_open_nothing_in_another_epoch(field: str) -> None:
    scheme = Sash(3)
    total, seeds, expected = sum_up(scheme, (np.full(200, r, np.int32) for r in range(3)))
    opener = SashOpener(scheme, summed(seeds))
    assert np.array_equal(opener.decrypt(total), expected)
    moved = dataclasses.replace(total, slot=OTHER_SLOTS[field])
    with pytest.raises(ProtocolError, match="other seeds"):
        opener.decrypt(moved)
    one, other = (public_key(sash_preset(DEFAULT_SASH), s) for s in (SLOT, OTHER_SLOTS[field]))
    assert one != other


def test_the_public_matrix_is_of_an_epoch_and_of_a_preset() -> None:
    keys = {public_key(preset, slot) for preset in SASH.values() for slot in OTHER_SLOTS.values()}
    assert len(keys) == len(SASH) * 4  # run, roster and epoch, and one for all the rest
    assert all(len(key) == 32 for key in keys)


@pytest.mark.parametrize("preset", SASH)
def test_seeds_of_another_shape_or_type_are_refused(preset: str) -> None:
    scheme = Sash(3, preset=preset)
    total, seeds, _ = sum_up(scheme, (np.zeros(20, np.int32) for _ in range(3)))
    right = summed(seeds)
    for wrong in (
        right[:-1],
        np.append(right, np.uint64(0)),
        right[:0],
        right.astype(np.float64),
        right.reshape(1, -1),
    ):
        with pytest.raises((ConfigError, ProtocolError)):
            SashOpener(scheme, wrong).decrypt(total)


@pytest.mark.parametrize("preset", SASH)
@pytest.mark.parametrize("source", [lambda n: b"", lambda n: bytes(n - 8), lambda n: bytes(n + 8)])
def test_a_random_source_that_gives_another_number_of_bytes(
    preset: str, source: Callable[[int], bytes]
) -> None:
    """Too few would be a weaker seed, none at all no mask."""
    with pytest.raises((ConfigError, ProtocolError)):
        SashSealer(Sash(3, preset=preset), 0, random=source).encrypt(plain([1, 2]), SLOT)


# --- seeds ---


def test_no_two_ciphertexts_are_equal() -> None:
    scheme = Sash(3)
    zero = plain(np.zeros(50, np.int32))
    sealers = [SashSealer(scheme, rank % 3) for rank in range(6)]
    made = [s.encrypt(zero, slot) for s in sealers for slot in (SLOT, *OTHER_SLOTS.values())]
    assert len({part.data.tobytes() for part in made}) == len(made)
    seeds = [s.take_seed(slot) for s in sealers for slot in (SLOT, *OTHER_SLOTS.values())]
    assert len({seed.tobytes() for seed in seeds}) == len(made)
    assert all(seed.shape == (2048,) and int(seed.max()) < Q for seed in seeds)


def test_seeds_come_from_the_systems_randomness() -> None:
    assert SashSealer(Sash(3), 0).random is secrets.token_bytes


def test_a_seed_is_taken_once() -> None:
    sealer = SashSealer(Sash(3), 0)
    with pytest.raises(ReuseError, match="no key"):
        sealer.take_seed(SLOT)
    sealer.prepare(SLOT, 3)
    with pytest.raises(ReuseError, match="no key"):  # nothing was encrypted under it
        sealer.take_seed(SLOT)
    sealer.encrypt(plain([1, 2, 3]), SLOT)
    other = OTHER_SLOTS["attempt"]
    sealer.encrypt(plain([1, 2, 3]), other)
    seed = sealer.take_seed(SLOT)
    for _ in range(2):
        with pytest.raises(ReuseError, match="taken before"):
            sealer.take_seed(SLOT)
    assert not np.array_equal(sealer.take_seed(other), seed)


def test_what_was_prepared_is_used_once_and_for_nothing_else() -> None:
    scheme = Sash(3)
    sealer = SashSealer(scheme, 0, random=drawn(1))
    expected = SashSealer(scheme, 0, random=drawn(1)).encrypt(plain(range(40)), SLOT)
    sealer.prepare(SLOT, 40)
    sealed = sealer.encrypt(plain(range(40)), SLOT)
    assert sealed.data.tobytes() == expected.data.tobytes()
    first = sealer.take_seed(SLOT)
    later = OTHER_SLOTS["round"]
    sealer.prepare(later, 39)
    sealed = sealer.encrypt(plain(range(40)), later)
    seed = sealer.take_seed(later)
    assert not np.array_equal(seed, first)
    assert SashOpener(scheme, seed).decrypt(sealed).tolist() == list(range(40))
    mixed = SashSealer(scheme, 0)
    mixed.prepare(SLOT, 40)
    mixed.prepare(SLOT, 40)
    sealed = mixed.encrypt(plain(range(40)), SLOT)
    opened = SashOpener(scheme, mixed.take_seed(SLOT)).decrypt(sealed)
    assert opened.tolist() == list(range(40))


def test_a_refused_vector_uses_no_slot() -> None:
    scheme = Sash(3)
    sealer = SashSealer(scheme, 0)
    with pytest.raises(RangeError):
        sealer.encrypt(plain([scheme.space.bound + 1]), SLOT)
    sealed = sealer.encrypt(plain([scheme.space.bound]), SLOT)
    seed = sealer.take_seed(SLOT)
    assert SashOpener(scheme, seed).decrypt(sealed).tolist() == [scheme.space.bound]


# --- what is shown ---


def test_errors_hold_no_values() -> None:
    scheme = Sash(3, 16)
    for bad in (1_234_567, -1_234_567):
        for vector in (Plain(np.array([bad]), NOTHING), Plain(NOTHING, np.array([5, bad]))):
            with pytest.raises(RangeError, match="a value lies beyond 32767") as caught:
                SashSealer(scheme, 0).encrypt(vector, SLOT)
            assert "1234567" not in str(caught.value).replace("_", "").replace(",", "")
    with pytest.raises(RangeError, match="got float64; quantize first") as caught:
        SashSealer(scheme, 0).encrypt(Plain(np.array([0.12345]), NOTHING), SLOT)
    assert "12345" not in str(caught.value)
    total, seeds, _ = sum_up(scheme, (np.full(300, 31_111, np.int32) for _ in range(3)))
    seeds[1][0] ^= np.uint64(1)
    with pytest.raises(ProtocolError) as caught:
        SashOpener(scheme, summed(seeds)).decrypt(total)
    for secret in (31_111, 93_333, *map(int, summed(seeds)[:3])):
        assert str(secret) not in str(caught.value)


def shows(shown: str, secret: bytes) -> bool:
    """Whether a text gives bytes, or the field elements that they are, away."""
    words = np.frombuffer(secret[: len(secret) // 8 * 8], "<u8").tolist()
    texts = [repr(secret[:16])[2:-1], secret[:8].hex(), *map(str, words[:3]), *map(str, words[-3:])]
    return any(text in shown for text in texts)


def test_reprs_hide_seeds() -> None:
    scheme = Sash(3)
    sealer = SashSealer(scheme, 0)
    sealer.prepare(SLOT, 20)
    ready = next(iter(sealer._ready.values()))
    prepared = repr(sealer)
    sealed = sealer.encrypt(plain(range(20)), SLOT)
    seed = sealer._seeds[SLOT].copy()
    assert np.array_equal(seed, ready[0])
    told = repr(sealer)
    assert np.array_equal(sealer.take_seed(SLOT), seed)
    shown = [
        prepared,
        told,
        str(sealer),
        repr(SashOpener(scheme, seed)),
        repr(sealed),
        repr(scheme),
    ]
    shown.append(repr(scheme.generator(SLOT)))
    for text in shown:
        assert not shows(text, seed.tobytes())
        assert "_seeds" not in text
        assert "array" not in text
    assert shows(repr(seed), seed.tobytes()), "this test looks in the wrong places"


def test_reprs_of_the_agreement_hide_seeds_and_shares() -> None:
    epochs = group(3)
    identities = [masking.Identity.from_seed(bytes([i + 1]) * 32) for i in range(3)]
    by_rank = sorted(identities, key=lambda identity: identity.public)
    dealt = []
    for epoch in epochs:
        sealer = SashSealer(Sash(3), epoch.rank)
        sealer.encrypt(plain([1]), SLOT)
        dealt.append(masking.deal(epoch, SLOT, sealer.take_seed(SLOT)))
    boxes = [dealt[1].boxes[0], dealt[2].boxes[0]]
    agreed, _ = masking.agree(epochs[0], by_rank[0], dealt[0], (0, 1, 2), [b"", *boxes], 2048)
    again = type(agreed).from_bytes(agreed.to_bytes())
    for holder, secret in (
        (dealt[0], dealt[0].own),
        (masking.Dealt.from_bytes(dealt[0].to_bytes()), dealt[0].own),
        (agreed, agreed.share),
        (again, agreed.share),
        (epochs[0], epochs[0].group_key),
        (epochs[0], epochs[0].pair_keys[1]),
    ):
        data = bytes(secret)
        assert len(data) >= 32
        assert data in holder.to_bytes()
        for shown in (repr(holder), str(holder)):
            assert not shows(shown, data)
            assert data.hex()[:16] not in shown
        assert not any(shows(repr(holder), box) for box in boxes)


# --- refusals that are SASH's own ---


def test_nothing_sparse() -> None:
    scheme = Sash(3)
    support = Support.of(np.array([0, 2], np.uint32), 4)
    sealer = SashSealer(scheme, 0)
    with pytest.raises(ProtocolError, match="sparse"):
        sealer.encrypt(plain([1, 2]), SLOT, support=support)
    with pytest.raises(ProtocolError, match="sparse"):
        sealer.encrypt(plain([1, 2])._replace(coords=np.array([0, 2], np.uint32)), SLOT)
    sealed = sealer.encrypt(plain([1, 2]), SLOT)
    told = dataclasses.replace(sealed, supports=(support,))
    for total in (None, scheme.add(None, SashSealer(scheme, 1).encrypt(plain([1, 2]), SLOT))):
        with pytest.raises(ProtocolError, match="sparse"):
            scheme.add(total, told)
    with pytest.raises(ProtocolError, match="sparse"):
        SashOpener(scheme, sealer.take_seed(SLOT)).decrypt(told)


def test_no_modes() -> None:
    scheme = Sash(3)
    sealer = SashSealer(scheme, 0)
    for attempt in (
        lambda: scheme.check_mode("double"),
        lambda: sealer.prepare(SLOT, 3, "double"),
        lambda: sealer.encrypt(plain([1]), SLOT, mode="double"),
    ):
        with pytest.raises(ProtocolError, match="it has none"):
            attempt()
    sealed = dataclasses.replace(sealer.encrypt(plain([1]), SLOT), mode="single")
    with pytest.raises(ProtocolError, match="it has none"):
        scheme.add(None, sealed)


# --- the generator ---


@pytest.mark.parametrize("preset", SASH)
def test_masks_are_the_same_from_anywhere_on_any_threads(preset: str) -> None:
    named = sash_preset(preset)
    generator = Shprg(named, public_key(named, SLOT))
    seed = SashSealer(Sash(3, preset=preset), 0, random=drawn(5))._mask(SLOT, 0)[0]
    length = 3 * 2048 + 17 if named.form == "ring" else 5 * 64 + 17
    whole = generator.expand(seed, length)
    for threads in (2, 3, 5):
        assert np.array_equal(generator.expand(seed, length, threads), whole)
    for part in (0, 1, generator.step - 1, generator.step, generator.step + 1):
        assert np.array_equal(generator.expand(seed, part), whole[:part])
    other = Shprg(named, public_key(named, SLOT), AesCtr("pycryptodome"))
    assert np.array_equal(other.expand(seed, length), whole)


def test_slots_of_one_epoch_share_the_matrix_and_not_the_seed() -> None:
    scheme = Sash(3)
    later: Slot = OTHER_SLOTS["round"]
    seed = SashSealer(scheme, 0, random=drawn(5))._mask(SLOT, 0)[0]
    one, other = (scheme.generator(slot).expand(seed, 50) for slot in (SLOT, later))
    assert np.array_equal(one, other)
    sealer = SashSealer(scheme, 0)
    parts = [sealer.encrypt(plain(np.zeros(50)), slot).data for slot in (SLOT, later)]
    assert not np.array_equal(*parts)
