"""The laws of schemes and codecs, written once for all of them.

A system joins by one more entry in `SCHEMES` or `CODECS`; `test_laws.py` or `test_codec_laws.py` then
holds it to everything here. Seeded generators make test data only, no keys and no masks.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding import aciq, squares
from flhe.coding.base import Codec, Integers, Plain, State
from flhe.coding.chain import Chain, chain
from flhe.coding.clip import Clip
from flhe.coding.flatten import Entry, Layout
from flhe.coding.permute import Permute
from flhe.coding.quantize import Quantize
from flhe.coding.sparsify import TopK
from flhe.coding.weigh import Weigh
from flhe.math.permutation import Permutation
from flhe.math.prg import Rounding
from flhe.schemes.base import Adder, Reader, Scheme
from flhe.schemes.batchcrypt.keys import SecretKey
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.bfv.scheme import Bfv
from flhe.schemes.esafl import keys as eshe_keys
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.flashe.adder import FlasheAdder
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sash.adder import SashSealer, Seed
from flhe.schemes.sash.scheme import SASH, Sash
from flhe.schemes.sealed import Sealed, Slot
from flhe_lab.variants.threshold.scheme import ThresholdCkks
from tests.roles import Roles, pair, roles_of
from tests.scripted import Given

KEY = bytes(range(100, 132))
OTHER_KEY = bytes(range(32))

SLOT = Slot(
    run_id=7,
    roster_hash=bytes([1]) * 32,
    epoch=bytes([2]) * 16,
    round=3,
    attempt=0,
    layout_hash=bytes([4]) * 32,
    history=bytes([5]) * 32,
)

OTHER_SLOTS = {
    "run_id": dataclasses.replace(SLOT, run_id=8),
    "roster_hash": dataclasses.replace(SLOT, roster_hash=bytes(32)),
    "epoch": dataclasses.replace(SLOT, epoch=bytes(16)),
    "round": dataclasses.replace(SLOT, round=4),
    "attempt": dataclasses.replace(SLOT, attempt=1),
    "layout_hash": dataclasses.replace(SLOT, layout_hash=bytes(32)),
    "history": dataclasses.replace(SLOT, history=bytes(32)),
    "purpose": dataclasses.replace(SLOT, purpose="mean-squares"),
}
"""One slot for each field that differs; a test checks that none of the fields is missing here."""

# --- schemes ---


def whole(values: Any) -> Plain:
    return Plain(np.asarray(values, np.int32), np.empty(0, np.int32))


@dataclass(frozen=True)
class SchemeCase:
    """One scheme with one set of parameters."""

    id: str
    build: Callable[..., Roles]  # of (cohort, key, threads, whether to draw from key and rank)
    block: int  # values after which a ciphertext's layout starts again: lengths around it are tried
    draws: bool = False  # senders draw at random; else one key and slot give one ciphertext
    reader: Reader = "clients"
    secrets: Callable[[Any], list[bytes]] = lambda _sealer: [KEY, KEY[:8]]  # of one used in `SLOT`
    many: int = 70_000  # values that keep several threads busy
    forgets: bool = False  # a sealer's secret is taken from it once, after it has encrypted
    most: int = 40  # members that its parameters have room for
    shared: bool = False  # nobody has the key: sealers hold no secret
    tags_alone: bool = False  # only tags say whose sum it is, and of which slot
    sparse: bool = False
    redraws: bool = False  # a library draws where nobody can replay it

    @property
    def fresh(self) -> bool:
        """Whether no two ciphertexts are ever the same."""
        return self.draws or self.redraws

    def roles(self, cohort: int, key: bytes = KEY, threads: int = 1, same: bool = False) -> Roles:
        """Everybody's part; `same` where ciphertexts shall come out the same each time."""
        return self.build(cohort, key, threads, same)


def flashe_lanes(adder: Adder, sealed: Sealed) -> NDArray[Any]:
    assert isinstance(adder, FlasheAdder)
    packing = adder.packing
    out = np.empty(sealed.length, packing.signed)
    return packing.unpack(sealed.data, np.zeros(sealed.length, packing.lane), out)


def _flashe(bits: int, masking: str) -> SchemeCase:
    roles = functools.partial(roles_of, scheme=Flashe(masking), bits=bits)  # type: ignore[arg-type]
    block = max(Flashe().adder(cohort, bits).packing.block for cohort in (2, 5))
    return SchemeCase(f"flashe-{bits}-{masking}", roles, block, sparse=True)


def _sash_secrets(sealer: SashSealer) -> list[bytes]:
    seed = sealer._seeds[SLOT].tobytes()
    return [seed, seed[:8], seed[-8:]]


def _sash(bits: int, preset: str, unmask: Any) -> SchemeCase:
    return SchemeCase(
        f"sash-{preset}-{bits or 'auto'}-{unmask}",
        functools.partial(roles_of, scheme=Sash(unmask, preset), bits=bits),
        SASH[preset].dimension,
        True,
        unmask,
        _sash_secrets,
        70_000,
        forgets=True,
    )


def paillier_key(key: bytes) -> SecretKey:
    """A key pair of 2048 bits that stands for `key`."""
    return SecretKey.from_bytes(pair(BatchCrypt(key_bits=2048), key)[1])


def _paillier_secrets(sealer: Any) -> list[bytes]:
    key = sealer.key
    return [
        number.to_bytes(128, order)[:20] if order == "little" else number.to_bytes(128, order)[-20:]
        for number in (key.p, key.q, *key.orders)
        for order in ("big", "little")
    ]


def _paillier(bits: int, subgroup: bool = False) -> SchemeCase:
    scheme = BatchCrypt(key_bits=2048, subgroup=subgroup)
    return SchemeCase(
        f"batchcrypt-{bits}{'-subgroup' if subgroup else ''}",
        functools.partial(roles_of, scheme=scheme, bits=bits),
        BatchCrypt(key_bits=2048).adder(3, bits).batch.per,
        True,
        secrets=_paillier_secrets,
        many=300,
        tags_alone=True,
    )


def _eshe_guess(adder: Any) -> Seed:
    n = adder.sizes.n
    return eshe_keys.to_elements(eshe_keys.draw_own(n), adder.cohort)


def _eshe(bits: int, ring: str) -> SchemeCase:
    scheme = Esafl(ring=ring, keys="round")
    sizes = scheme.adder(2, bits).sizes
    return SchemeCase(
        f"esafl-{bits}-{ring}",
        functools.partial(roles_of, scheme=scheme, bits=bits, guess=_eshe_guess),
        sizes.n * sizes.slots.per,
        True,
        secrets=lambda sealer: [seed := sealer._seeds[SLOT].tobytes(), seed[:64]],
        forgets=True,
    )


def _seal(scheme: Scheme, block: int, bits: int | None = None, *named: object) -> SchemeCase:
    """A scheme that TenSEAL encrypts."""
    return SchemeCase(
        "-".join(map(str, (scheme.name, *named))),
        functools.partial(roles_of, scheme=scheme, bits=bits),
        block,
        secrets=lambda _: [KEY, KEY[:8], pair(scheme, KEY)[1][-64:-32]],
        many=20_000,
        redraws=True,
    )


def _threshold() -> SchemeCase:
    return SchemeCase(
        "threshold-ckks",
        functools.partial(roles_of, scheme=ThresholdCkks()),
        8,
        secrets=lambda _: [KEY, KEY[:8]],
        many=20_000,
        most=16,
        shared=True,
        tags_alone=True,
        redraws=True,
    )


SCHEMES = [
    *(_flashe(bits, mode) for bits in range(2, 33) for mode in ("double", "single")),
    *(_sash(bits, "ring-2048", "server") for bits in (0, 2, 3, 8, 12, 16, 19)),
    _sash(0, "ring-2048", "clients"),
    *(_paillier(bits) for bits in (2, 16, 32)),
    _paillier(16, subgroup=True),
    *(_eshe(bits, "goldilocks-4096") for bits in (2, 8, 16, 32)),
    *(_eshe(16, ring) for ring in ("rns-4096", "rns-8192", "rns-16384", "paper-32768")),
    *(_seal(FedmlHe(ring="4096"), 4096, bits, bits, "4096") for bits in (2, 16, 24)),
    _seal(FedmlHe(ring="8192"), 8192, 16, 16, "8192"),
    _seal(Bfv(), 8192),
    _threshold(),
]
"""Every parameter set of every scheme, for laws that are cheap."""

FEW_SCHEMES = [
    case
    for case in SCHEMES
    if case.id
    in {
        *(f"flashe-{b}-{m}" for b in (2, 16, 29, 32) for m in ("double", "single")),
        "sash-ring-2048-auto-server",
        "sash-ring-2048-8-server",
        "sash-ring-2048-auto-clients",
        "batchcrypt-16",
        "batchcrypt-16-subgroup",
        "esafl-16-goldilocks-4096",
        "esafl-16-rns-8192",
        "fedml-he-16-4096",
        "bfv",
        "threshold-ckks",
    }
]
"""The same for laws that are not. FLASHE: narrow, usual, at the border of a 32-bit lane, beyond it.
SASH: as many bits as there is room for, and fewer. ESAFL: with one limb, and with several."""


def random_plain(adder: Adder, values: int, extras: int, rng: np.random.Generator) -> Plain:
    """Plaintext that fills the scheme's space, its borders included."""
    assert isinstance(adder.space, Integers)
    bound = adder.space.bound
    lanes = rng.integers(-bound, bound + 1, values + extras).astype(np.int32)
    edge = rng.random(lanes.size)
    lanes[edge < 0.1] = -bound
    lanes[edge > 0.9] = bound
    return Plain(lanes[:values], lanes[values:])


def joined(plain: Plain) -> NDArray[np.int64]:
    """Values, then extras: the order in which an opener gives them back."""
    return np.concatenate([plain.values, plain.extras]).astype(np.int64)


def subsets(cohort: int, rng: np.random.Generator, most: int = 31) -> Iterator[tuple[int, ...]]:
    """All 2^N - 1 sets of senders of a small cohort; of a larger one all, one, and some."""
    if cohort <= 5:
        for size in range(1, cohort + 1):
            yield from itertools.combinations(range(cohort), size)
        return
    yield tuple(range(cohort))
    yield (0,)
    yield (cohort - 1,)
    yield tuple(range(0, cohort, 2))
    for _ in range(most - 4):
        size = int(rng.integers(1, cohort + 1))
        yield tuple(sorted(rng.choice(cohort, size, replace=False).tolist()))


def sum_of(adder: Adder, parts: Iterable[Sealed]) -> Sealed:
    """Sum of `parts`, one after the other."""
    first, *others = parts
    return functools.reduce(adder.add, others, adder.add(None, first))


def add_up(adder: Adder, parts: Sequence[Sealed], rng: np.random.Generator) -> Sealed:
    """Sum of `parts` in a random order and grouping."""
    sums = [adder.add(None, part) for part in parts]
    while len(sums) > 1:
        left = sums.pop(int(rng.integers(len(sums))))
        right = sums.pop(int(rng.integers(len(sums))))
        sums.append(adder.add(left, right))
    return sums[0]


def sums_open(case: SchemeCase, cohort: int, values: int, extras: int, seed: int) -> None:
    """The law of schemes: any subset, in any order and grouping, opens to the sum."""
    rng = np.random.default_rng(seed)
    adder, sealers, opener = case.roles(cohort)
    plains = [random_plain(adder, values, extras, rng) for _ in range(cohort)]
    parts = [s.encrypt(p, SLOT) for s, p in zip(sealers, plains, strict=True)]
    before = [part.data.copy() for part in parts]
    for senders in subsets(cohort, rng):
        total = add_up(adder, [parts[i] for i in senders], rng)
        assert total.senders == senders
        assert total.length == values + extras
        assert total.data.size == adder.nbytes(total.length)
        opened = opener.decrypt(total)
        expected = np.sum([joined(plains[i]) for i in senders], axis=0)
        assert opened.shape == (values + extras,)
        assert np.array_equal(opened, expected), senders
    for part, kept in zip(parts, before, strict=True):
        assert np.array_equal(part.data, kept), "add changed a part"


# --- codecs ---


LAYOUT = Layout(
    (
        Entry("conv.weight", (40, 5), "float32"),
        Entry("conv.bias", (), "float32"),
        Entry("steps", (3,), "int64"),
        Entry("head.weight", (99,), "float16"),
        Entry("empty", (0, 4), "float32"),
    )
)
BOUNDS = {"conv.*": 0.7, "head.weight": 2.5, "*": 1.0}


def bound_of(name: str) -> float:
    """What `BOUNDS` says of an array, found by hand."""
    return 0.7 if name.startswith("conv") else BOUNDS.get(name, 1.0)


@dataclass(frozen=True)
class CodecCase:
    """One codec."""

    id: str
    build: Callable[[Callable[[], Rounding]], Any]  # of a source of rounding values
    bounds: Any  # what it clips at, by pattern: test data stays within
    max_examples: int | None = (
        None  # bound of its `Weigh`: it decodes to a weighted mean, else a sum
    )
    start: Callable[[Chain], State] = lambda codec: codec.init(LAYOUT)  # of a round of `LAYOUT`


def _chain(
    bits: int,
    rule: Any = None,
    *,
    bounds: Any = BOUNDS,
    limit: int | None = None,
    rounding: Any = "stochastic",
    fuse: bool = True,
    ratio: float | None = None,
    permute: bool = False,
) -> CodecCase:
    """A chain; thresholds of a rule were fitted on a round that spread as far as `BOUNDS` has it."""

    def build(random: Callable[[], Rounding]) -> Chain:
        codecs: list[Codec] = [] if ratio is None else [TopK(ratio, warmup=0, small=0)]
        codecs.append(Clip(rule=rule) if rule else Clip(bounds))
        codecs += [] if limit is None else [Weigh(limit)]
        codecs.append(Quantize(bits, rounding, random))
        codecs += [Permute(Permutation(KEY, LAYOUT.floats))] if permute else []
        return Chain(tuple(codecs), fuse=fuse)

    def start(codec: Chain) -> State:
        state = codec.init(LAYOUT)
        if not codec.needs_mean_squares(state):
            return state
        sizes = {name: stop - start for name, start, stop in LAYOUT.segments()}
        spread = (np.array(list(map(bound_of, sizes))) / aciq.ratio(bits)) ** 2
        return codec.fitted(squares.to_extras(spread), 1, state)

    words = [] if ratio is None else ["sparsify", f"{ratio:g}"]
    words += ["clip", rule or ("layers" if isinstance(bounds, dict) else str(bounds))]
    words += [] if limit is None else ["weigh", str(limit)]
    words += ["quantize", str(bits), rounding, *(["permute"] if permute else [])]
    return CodecCase("-".join([*words, "fused" if fuse else "apart"]), build, bounds, limit, start)


CODECS = [
    CodecCase("clip", lambda _: chain(Clip(0.7)), 0.7),
    CodecCase("clip-layers", lambda _: chain(Clip(BOUNDS)), BOUNDS),
    CodecCase("clip-weigh", lambda _: chain(Clip(BOUNDS), Weigh(50)), BOUNDS, 50),
    *(
        _chain(bits, bounds=bounds, rounding=rounding)
        for bits in (2, 8, 16, 32)
        for rounding in ("stochastic", "nearest")
        for bounds in (0.7, BOUNDS)
    ),
    *(
        _chain(bits, bounds=bounds, rounding=rounding, limit=limit, fuse=fuse)
        for bits in (2, 9, 16, 32)
        for rounding in ("stochastic", "nearest")
        for bounds, limit in ((1.0, 1), (BOUNDS, 50))
        for fuse in (True, False)
    ),
    *(
        _chain(bits, rule, limit=limit, fuse=fuse)
        for rule in ("history", "exchange")
        for bits in (4, 16, 32)
        for limit, fuse in ((50, True), (50, False), (None, False))
    ),
    *(
        _chain(bits, rule, limit=50, fuse=fuse, ratio=ratio, permute=permute)
        for rule in (None, "history", "exchange")
        for bits, ratio, permute in ((4, 1.0, False), (16, 0.1, False), (16, 0.25, True))
        for fuse in (True, False)
    ),
]


def random_source(seed: int, size: int) -> Callable[[], Rounding]:
    """A seeded source of rounding values, for statistics that do not change from run to run."""
    draws = np.random.default_rng(seed).integers(0, 1 << 16, size).astype(np.uint16)
    return lambda: Given(draws)


def summed(parts: Sequence[Plain]) -> Plain:
    extras = np.sum([p.extras for p in parts], axis=0, dtype=np.int64)
    kind = np.int64 if parts[0].values.dtype.kind == "i" else np.float64
    if parts[0].coords is None:
        return Plain(np.sum([p.values for p in parts], axis=0, dtype=kind), extras)
    coords = functools.reduce(np.union1d, [p.coords for p in parts if p.coords is not None])
    values = np.zeros(coords.size, kind)
    for part in parts:
        assert part.coords is not None
        at = np.searchsorted(coords, part.coords)
        values[at] += part.values
    return Plain(values, extras, coords.astype(np.uint32))


def largest_error(codec: Chain, count: int, state: State) -> float:
    """Of a decoded sum (or mean) of `count` vectors, in units of the input; last step first."""
    error = 0.0
    for step, shared in reversed(list(zip(codec.codecs, state.shared, strict=True))):
        match step:
            case Quantize():  # one step a term, half of one where rounding is to nearest
                error = step.step * (error + count * (1 if step.rounding == "stochastic" else 0.5))
            case Weigh():  # the sum's error over the least weight that clients have, one each
                error = error * step.max_examples / count + 2.0**-22
            case Clip():  # what float32 loses in scaling; what lies beyond alpha is cut on purpose
                error = max(shared.alphas) * (error + count * 2.0**-22)
    return error


def sums_decode(case: CodecCase, cohort: int, seed: int) -> None:
    """The law of codecs: the sum of encodings decodes to the sum, or to the weighted mean.

    Each client has rounding values of its own; it sends what a sparsifier does not keep back.
    """
    rng = np.random.default_rng(seed)
    sizes = {name: stop - start for name, start, stop in LAYOUT.segments()}
    alpha = [case.bounds if type(case.bounds) is float else bound_of(name) for name in sizes]
    alphas = np.repeat(alpha, list(sizes.values()))
    xs, parts = [], []
    counts = [int(rng.integers(1, (case.max_examples or 99) + 1)) for _ in range(cohort)]
    for i, count in enumerate(counts):
        x = (rng.uniform(-0.999, 0.999, alphas.size) * alphas).astype(np.float32)
        codec = case.build(random_source(seed * 1000 + i, x.size))
        state = case.start(codec)
        extras = np.array([1, count, -3, 1 << 40], np.int64)
        part, after = codec.encode(Plain(x, extras), state)
        parts.append(part)
        xs.append(x - after.local[0] if codec.sparse else x)
    opened, _ = codec.decode(summed(parts), range(cohort), state)
    if case.max_examples is not None:
        expected = np.average(np.array(xs, np.float64), axis=0, weights=counts)
    else:
        expected = np.sum(xs, axis=0, dtype=np.float64)
    error = np.abs(opened.values - expected)
    allowed = largest_error(codec, cohort, state)
    assert error.max() <= allowed, (error.max(), allowed)
    assert opened.extras.tolist() == [cohort, sum(counts), -3 * cohort, cohort << 40]
