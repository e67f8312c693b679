"""What `flhe bench` times: schemes of ours, peers a user would pick instead, physical limits.

A contender answers for one client and one server: `encrypt` turns a float32 update into what is
uploaded, `add` folds one upload into a sum, `decrypt` turns the sum into a float32 mean. A limit does
nothing but the least that anybody must do, and fills only the phases that it bounds.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.extras import Extras
from flhe.coding.flatten import Entry, Layout
from flhe.errors import ConfigError, FlheError
from flhe.math.prg import BLOCK, CHUNK, AesCtr
from flhe.rounds.terms import Terms
from flhe.schemes.flashe import Flashe, FlasheOpener, FlasheSealer
from flhe.schemes.sum_tags import SumTags
from flhe.sealed import Sealed, Slot

Kind = Literal["scheme", "part", "peer", "limit"]
Vector = NDArray[np.float32]
Timed = Callable[[], object]

BUILT = ("flashe", "sash", "batchcrypt", "esafl", "fedml-he", "plain")
SLOT = Slot(0, bytes(32), bytes(16), 1, 0, bytes(32), bytes(32))
"""Of all that is timed: one key and slot encrypt repeatedly, and protect nothing but random numbers."""
EXAMPLES = 1_000
"""Example count of every simulated client, and the bound that `Weigh` is given."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured.

    Parameters
    ----------
    values : int
        D, length of an update.
    cohort : int
        N, clients.
    dropouts : int
        Clients whose upload is missing; every other one from rank 1 on, the worst case for masks
        that telescope.
    threads : int
        Threads of one client.
    """

    values: int = 1_200_000
    cohort: int = 10
    dropouts: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        if self.values < 1:
            raise ConfigError(f"--values {self.values}: must be at least 1")
        if self.cohort < 2:
            raise ConfigError(f"--cohort {self.cohort}: must be at least 2")
        if not 0 <= self.dropouts <= self.cohort - 2:
            raise ConfigError(
                f"--dropouts {self.dropouts} of --cohort {self.cohort}: two clients must remain"
            )
        if self.threads < 1:
            raise ConfigError(f"--threads {self.threads}: must be at least 1")

    @property
    def survivors(self) -> tuple[int, ...]:
        """Ranks of the clients whose uploads are in the sum."""
        order = [*range(1, self.cohort, 2), *range(0, self.cohort, 2)]
        gone = set(order[: self.dropouts])
        return tuple(j for j in range(self.cohort) if j not in gone)

    def updates(self) -> list[Vector]:
        """One update per client: Gaussian, sigma 0.02, always the same."""
        rng = np.random.default_rng(20)  # test data; keys and masks never come from here
        return [
            (rng.standard_normal(self.values, np.float32) * np.float32(0.02))
            for _ in range(self.cohort)
        ]


class Contender(Protocol):
    """One row of the benchmark."""

    @property
    def name(self) -> str:
        """Name of the row."""

    @property
    def kind(self) -> Kind:
        """What it stands for."""

    @property
    def note(self) -> str | None:
        """What one should know when reading its times."""

    @property
    def upload_bytes(self) -> int | None:
        """Bytes that one client uploads."""

    @property
    def max_repeats(self) -> int:
        """Repeats beyond which waiting for it teaches nothing."""

    @property
    def encrypt(self) -> Timed | None:
        """Update to upload."""

    @property
    def add(self) -> Timed | None:
        """One upload into a sum."""

    @property
    def decrypt(self) -> Timed | None:
        """Sum to mean."""

    def max_error(self) -> float | None:
        """Largest error of the mean that `decrypt` gave; None where there is no mean."""


class FlasheContender:
    """FLASHE, from float32 update to float32 mean; nothing is computed ahead of time."""

    kind: Kind = "scheme"
    max_repeats = 1_000_000

    def __init__(self, setting: Setting, updates: Sequence[Vector]) -> None:
        self.name = "flashe"
        terms = Terms(clip=1.0, max_examples=EXAMPLES, metrics=())
        self.layout = Layout((Entry("update", (setting.values,), "float32"),))
        self.scheme = Flashe(setting.cohort, terms.bits, terms.masking)
        self.codec = terms.codec()
        self.state = self.codec.init(self.layout)
        self.setting = setting
        self.note = (
            f"{terms.masking} masking, {terms.bits} bits, {self.scheme.lane_bits} on the wire"
        )
        self._extras = Extras().encode(EXAMPLES, {}, [])
        self._key = secrets.token_bytes(32)
        self._tags = SumTags(self._key, SLOT, setting.values, setting.threads)
        self._updates = updates
        parts = [self._encrypt(j) for j in setting.survivors]
        self.upload_bytes = parts[0].data.size + len(parts[0].header())
        self.length = parts[0].length
        total: Sealed | None = None
        for part in parts:
            total = self.scheme.add(total, part)
        assert total is not None
        self._total = total
        self._part = parts[0]
        # `add` is timed on a running sum of its own: what it holds does not matter, its size does.
        self._running = self.scheme.add(None, parts[0])
        self.mean: Vector = np.empty(0, np.float32)
        self.encrypt: Timed = lambda: self._encrypt(0)
        self.add: Timed = lambda: self.scheme.packing.add(
            self._running.data, self._part.data, self.length
        )
        self.decrypt: Timed = self._decrypt

    def _encrypt(self, rank: int) -> Sealed:
        # A fresh slot each time would only change 32 bytes of key derivation; a fresh sealer is what
        # lets one process encrypt repeatedly. These masks protect nothing but random numbers.
        sealer = FlasheSealer(self.scheme, self._key, rank, threads=self.setting.threads)
        plain, _ = self.codec.encode(Plain(self._updates[rank], self._extras), self.state)
        return sealer.encrypt(self._tags.tagged(plain, rank, self.scheme.bits), SLOT)

    def _decrypt(self) -> None:
        opener = FlasheOpener(self.scheme, self._key, threads=self.setting.threads)
        plain = verified(self._tags, opener.decrypt(self._total), self._total, self.scheme.bits)
        opened, _ = self.codec.decode(plain, self._total.senders, self.state)
        self.mean = opened.values

    def max_error(self) -> float:
        """Against the float64 mean of the survivors' updates."""
        return worst(self.mean, [self._updates[j] for j in self.setting.survivors])

    def streams(self) -> tuple[int, int]:
        """Keystreams that encrypting and decrypting take."""
        count = [
            sum(len(terms) for terms in self.scheme.mask_terms(senders))
            for senders in ((0,), self.setting.survivors)
        ]
        return count[0], count[1]


class PlainContender:
    """FedAvg in clear: weigh, add, divide, in float32."""

    kind: Kind = "scheme"
    max_repeats = 1_000_000

    def __init__(self, setting: Setting, updates: Sequence[Vector]) -> None:
        self.name = "plain"
        self.note = "FedAvg in clear: weigh, add, divide"
        self.upload_bytes = 4 * setting.values
        self.setting = setting
        self._updates = updates
        weight = np.float32(EXAMPLES)
        total = np.zeros(setting.values, np.float32)
        for j in setting.survivors:
            total += updates[j] * weight
        running = np.zeros(setting.values, np.float32)
        self.mean: Vector = np.empty(0, np.float32)
        factor = np.float32(1 / (EXAMPLES * len(setting.survivors)))

        def decrypt() -> None:
            self.mean = total * factor

        self.encrypt: Timed = lambda: updates[0] * weight
        self.add: Timed = lambda: np.add(running, updates[0], out=running)
        self.decrypt: Timed = decrypt

    def max_error(self) -> float:
        """Against the float64 mean of the survivors' updates."""
        return worst(self.mean, [self._updates[j] for j in self.setting.survivors])


@dataclass
class Limit:
    """Something that nobody can be faster than."""

    name: str
    note: str | None
    encrypt: Timed | None = None
    add: Timed | None = None
    decrypt: Timed | None = None
    kind: Kind = "limit"
    upload_bytes: int | None = None
    max_repeats: int = 1_000_000

    def max_error(self) -> None:
        """Nothing to compare."""


def limits(flashe: FlasheContender) -> list[Limit]:
    """OpenSSL's AES-256-CTR over FLASHE's own keystream, and NumPy adding and copying float32."""
    lane = np.dtype(flashe.scheme.packing.lane).itemsize
    sealing, opening = flashe.streams()
    values = flashe.setting.values
    rows = [
        Limit(
            "openssl-aes-ctr",
            f"AES-256-CTR over {sealing} streams to encrypt, {opening} to decrypt, of "
            f"{flashe.length} lanes of {8 * lane} bits; on one thread",
            encrypt=_keystream(sealing * flashe.length * lane),
            decrypt=_keystream(opening * flashe.length * lane),
        )
    ]
    piece = min(values, 1 << 15)
    a, b, c = (np.zeros(piece, np.float32) for _ in range(3))

    def add() -> None:
        for _ in range(values // piece):
            np.add(a, b, out=c)
        rest = values % piece
        np.add(a[:rest], b[:rest], out=c[:rest])

    source, target = np.zeros(values, np.float32), np.zeros(values, np.float32)
    rows.append(Limit("numpy-add-f32", f"pieces of {piece} that stay in cache", add=add))
    rows.append(
        Limit(
            "numpy-copy-f32",
            "one copy of the float32 update",
            encrypt=lambda: np.copyto(target, source),
            decrypt=lambda: np.copyto(target, source),
        )
    )
    return rows


def _keystream(nbytes: int) -> Timed:
    out = np.empty(CHUNK + BLOCK, np.uint8)
    key = secrets.token_bytes(32)

    def run() -> None:
        stream = AesCtr("openssl").stream(key, 0)
        for at in range(0, nbytes, CHUNK):
            stream.into(out, min(CHUNK, nbytes - at))

    return run


def verified(
    tags: SumTags,
    lanes: NDArray[Any],
    total: Sealed,
    bits: int,
    coords: NDArray[np.uint32] | None = None,
) -> Plain:
    """What an opened sum holds, once its tags are seen to fit; `coords` of a sparse one."""
    values = tags.floats if coords is None else coords.size
    whole = Plain(lanes[:values], lanes[values:], coords)
    bounds = [support.digest() for support in total.supports]
    plain, fits = tags.matching(whole, total.senders, bits, bounds)
    if not all(fits):
        raise FlheError(f"{total.scheme}: the tags of a sum do not fit")
    return plain


def worst(mean: NDArray[Any], updates: Sequence[Vector]) -> float:
    """Largest absolute difference from the float64 mean."""
    exact = np.zeros(mean.size, np.float64)
    for update in updates:
        exact += update
    exact /= len(updates)
    return float(np.max(np.abs(mean - exact)))


def scheme_named(name: str, setting: Setting, updates: Sequence[Vector]) -> Contender:
    """The contender for a scheme of ours.

    Raises
    ------
    ConfigError
        A scheme that nobody knows.
    """
    if name == "flashe":
        return FlasheContender(setting, updates)
    if name == "plain":
        return PlainContender(setting, updates)
    if name == "sash":
        from flhe.sim.sash_contender import SashContender

        return SashContender(setting, updates)
    if name == "batchcrypt":
        from flhe.sim.batchcrypt_contender import BatchcryptContender

        return BatchcryptContender(setting, updates)
    if name == "esafl":
        from flhe.sim.esafl_contender import EsaflContender

        return EsaflContender(setting, updates)
    if name == "fedml-he":
        from flhe.sim.fedml_contender import FedmlContender

        return FedmlContender(setting, updates)
    raise ConfigError(f"unknown scheme {name!r}; choose from {', '.join(BUILT)}")
