"""Each scheme of the library beside its second implementation: parameters and keys, from a case."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.schemes.base import Secrets
from flhe.schemes.batchcrypt.adder import BatchCryptAdder, BatchCryptOpener, BatchCryptSealer
from flhe.schemes.batchcrypt.keys import SecretKey
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.esafl.adder import EsaflAdder, EsaflOpener, EsaflSealer
from flhe.schemes.esafl.keys import draw_own, from_elements
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.fedml_he.adder import FedmlHeAdder, FedmlHeSealer
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.flashe.adder import FlasheAdder, FlasheOpener, FlasheSealer
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.keyed import JointKey
from flhe.schemes.sash.adder import SashAdder, SashOpener, SashSealer
from flhe.schemes.sash.scheme import Sash
from flhe.schemes.seal_adder import SealOpener
from flhe.schemes.seal_keys import SealSecret
from tests.reference import batchcrypt, esafl, fedml_he
from tests.reference.batchcrypt import BatchCryptBook
from tests.reference.esafl import EsaflBook
from tests.reference.fedml_he import FedmlHeBook, unpacked_key
from tests.reference.field import Q, elements
from tests.reference.flashe import FlasheBook
from tests.reference.gaussian import gaussian
from tests.reference.kinds import Both, Case, Kind, Steps, giving, sealed_of
from tests.reference.sash import PRESETS, SashBook
from tests.reference.wire import NEAR, Clear, Tape, Wire, columns, hashed, little, numbers


def given(case: Case, *names: str) -> Case:
    """Fields of a case that a book takes as they are."""
    return {name: case[name] for name in ("cohort", "bits", *names)} | {
        "slot": case.get("slot", NEAR)
    }


class FlasheKind(Kind):
    """Dense and sparse; a long case has hashes, and coordinates by a formula."""

    def book(self, case: Case) -> FlasheBook:
        told = given(case, "masking", "mode")
        return FlasheBook(**told, floats=case["length"], key=bytes.fromhex(case["key"]))

    def scheme(self, case: Case) -> FlasheAdder:
        return Flashe(masking=case["masking"]).adder(case["cohort"], case["bits"])

    def sealer(self, case: Case, scheme: FlasheAdder, rank: int) -> FlasheSealer:
        return FlasheSealer(scheme, bytes.fromhex(case["key"]), rank)

    def opener(self, case: Case, scheme: FlasheAdder, ranks: Sequence[int]) -> FlasheOpener:
        return FlasheOpener(scheme, bytes.fromhex(case["key"]))

    def is_sparse(self, case: Case) -> bool:
        return bool(case["sparse"] if "sparse" in case else "coords" in case["parts"][0])

    def clear(self, case: Case, part: Case) -> Clear:
        if "coords" not in part:
            return super().clear(case, part)
        coords, values = part["coords"], part["values"]
        if case.get("hashed"):
            coords = [d for d in range(case["length"]) if d % (part["rank"] + 3)]
            values = numbers(len(coords), case["bits"], part["rank"])
        return Clear(values, part["extras"], coords)


class SashKind(Kind):
    """Seeds are block 0 under a key; what must fail has a sum of some, and a number to add."""

    def book(self, case: Case) -> SashBook:
        mu = PRESETS[case["preset"]]
        tapes = case.get("tapes") or {
            part["rank"]: little(elements(bytes.fromhex(part["seed_key"]), 0, mu))
            for part in case.get("parts", ())
        }
        return SashBook(**given(case, "preset"), tapes=tapes)

    def scheme(self, case: Case) -> SashAdder:
        return Sash(unmask=case.get("unmask", "server"), preset=case["preset"]).adder(
            case["cohort"], case["bits"]
        )

    def sealer(self, case: Case, scheme: SashAdder, rank: int) -> SashSealer:
        if not (tapes := self.book(case).tapes):
            return SashSealer(scheme, rank)
        return SashSealer(scheme, rank, random=Tape(tapes[rank]))

    def opener(self, case: Case, scheme: SashAdder, ranks: Sequence[int]) -> SashOpener:
        return SashOpener(scheme, np.array(self._seed(case, ranks), np.uint64))

    def _seed(self, case: Case, ranks: Sequence[int]) -> list[int]:
        book = self.book(case)
        if "seeds" not in case:
            return columns([book.seed(rank) for rank in ranks], Q)
        seeds = [elements(bytes.fromhex(key), 0, book.mu) for key in case["seeds"]]
        first, *rest = columns(seeds, Q)
        return [(first + int(case["plus"], 16)) % Q, *rest]


class EsaflKind(Kind):
    """Keys and errors are drawn from seeds, by rank; what must fail has a key of its own."""

    floats = 20

    def book(self, case: Case) -> EsaflBook:
        key = {"group_key": bytes.fromhex(case["group_key"])} if "group_key" in case else {}
        sizes = self.scheme(case).sizes
        about: Any = {"n": sizes.n, "per": sizes.slots.per, "limbs": len(sizes.slots.moduli)}
        about |= {"limb_bits": sizes.limb_bits}
        book = EsaflBook(**given(case, "ring", "keys"), **about, **key)
        assert (book.width, tuple(book.moduli)) == (sizes.slots.width, sizes.slots.moduli)
        return book

    def scheme(self, case: Case) -> EsaflAdder:
        key_id = bytes.fromhex(case.get("key_id", ""))
        return EsaflAdder(
            Esafl(ring=case["ring"], keys=case["keys"]), case["cohort"], case["bits"], key_id=key_id
        )

    def sealer(self, case: Case, scheme: EsaflAdder, rank: int) -> EsaflSealer:
        group_key = self.book(case).group_key
        if "own" in case:
            own, total = self._drawn(case["own"]), self._drawn(case["total"])
            if own is not None and total is not None and not scheme.scheme.per_sum_keys:
                held = JointKey(own.astype(np.int8), total).to_bytes()
                return scheme.sealer(Secrets(group_key, rank, held))
            return EsaflSealer(
                scheme, group_key, rank, None if own is None else own.astype(np.int8)
            )
        seeds: tuple[bytes, ...] = (esafl.noise_seed(rank),)
        if case["keys"] == "round":
            seeds, key = (esafl.key_seed(rank), *seeds), None
        else:
            key = np.array(esafl.own(rank, scheme.sizes.n), np.int8)
        return EsaflSealer(scheme, group_key, rank, key, random=giving(*seeds))

    def opener(self, case: Case, scheme: EsaflAdder, ranks: Sequence[int]) -> EsaflOpener:
        drawn = self._drawn(case.get("total"))
        total = self._total(ranks, scheme.sizes.n) if drawn is None else drawn
        return EsaflOpener(scheme, self.book(case).group_key, total, threads=2)

    def any_set(self, case: Case) -> bool:
        return bool(case["keys"] == "round")

    def reference(self, case: Case) -> Case:
        """Also of one step, where it must not fail."""
        if case.get("at") == "elements":
            return {"opened": esafl.key_of(range(case["cohort"]), case["n"])}
        if case.get("at") == "open":
            sealed, book = sealed_of(case["messages"][0]), self.book(case)
            wire = Wire(sealed.senders, sealed.length, sealed.data.tobytes())
            return {"opened": book.unmask(wire, self._key(case, book.n))[0]}
        return super().reference(case)

    def steps(self, case: Case) -> Steps:
        if case["at"] == "key":
            yield "key"
            return JointKey.from_bytes(bytes.fromhex(case["file"]))
        if case["at"] == "elements":
            yield "elements"
            told = np.frombuffer(bytes.fromhex(case["elements"]), "<u8").astype(np.uint64)
            return from_elements(told, case["n"], case["cohort"]).tolist()
        return (yield from super().steps(case))

    def _total(self, ranks: Sequence[int], n: int) -> NDArray[np.int32]:
        return np.array(esafl.key_of(ranks, n), np.int32)

    def _key(self, case: Case, n: int) -> list[int]:
        told = case["total"]
        key = columns([gaussian(bytes.fromhex(seed), n) for seed in told["seeds"]])
        return [key[0] * told["times"] + told["first"], *(x * told["times"] for x in key[1:])]

    def _drawn(self, told: Case | None) -> NDArray[np.int32] | None:
        """By the library: the sum of some, times a number, with a number added to coefficient 0."""
        if told is None:
            return None
        owns = [draw_own(told["n"], giving(bytes.fromhex(seed))) for seed in told["seeds"]]
        key: NDArray[np.int32] = np.sum(owns, axis=0, dtype=np.int32) * np.int32(told["times"])
        key[0] += told["first"]
        return key

    def of_part(self, both: Both, rank: int) -> Case:
        if both.case["keys"] == "round":
            return {}
        total = self._total(range(both.case["cohort"]), both.scheme.sizes.n)
        return {"file": hashed(JointKey(both.sealers[rank].own, total).to_bytes())}


class BatchCryptKind(Kind):
    """Under one key; what must fail is the first sender's ciphertext."""

    def book(self, case: Case) -> BatchCryptBook:
        book = BatchCryptBook(**given(case), tapes=case.get("tapes", {}))
        for part in case.get("parts", ()):
            size = 128 * len(book.layout(case["length"] + case["extras"]))
            book.tapes[part["rank"]] = random.Random(part["random"]).randbytes(size)
        return book

    def key(self) -> SecretKey:
        """The vectors'."""
        return SecretKey(batchcrypt.pair().p, batchcrypt.pair().q)

    def scheme(self, case: Case) -> BatchCryptAdder:
        return BatchCryptAdder(
            BatchCrypt(key_bits=2048), case["cohort"], case["bits"], public=self.key().public
        )

    def sealer(self, case: Case, scheme: BatchCryptAdder, rank: int) -> BatchCryptSealer:
        tape = Tape(self.book(case).tapes[rank])
        return BatchCryptSealer(scheme, self.key(), rank, random=tape)

    def opener(self, case: Case, scheme: BatchCryptAdder, ranks: Sequence[int]) -> BatchCryptOpener:
        return BatchCryptOpener(scheme, self.key())


class FedmlHeKind(Kind):
    """A key of the file has five coefficients a byte."""

    exact = False

    def book(self, case: Case) -> FedmlHeBook:
        """With the sizes that the library has found."""
        sizes = self.scheme(case).sizes
        about: Any = {"n": sizes.n, "q_bits": sizes.bits, "per": sizes.digits.per}
        about |= {"scale_bits": sizes.scale_bits, "key": self.key(case)}
        book = FedmlHeBook(**given(case), **about)
        assert (book.q, book.width, book.block) == (sizes.q, sizes.digits.width, sizes.block)
        return book

    def key(self, case: Case) -> tuple[int, ...]:
        """Its coefficients."""
        key = case["key"]
        return unpacked_key(bytes.fromhex(key), int(case["ring"])) if isinstance(key, str) else key

    def scheme(self, case: Case) -> FedmlHeAdder:
        return FedmlHe(ring=case["ring"]).adder(case["cohort"], case["bits"])

    def sealer(self, case: Case, scheme: FedmlHeAdder, rank: int) -> FedmlHeSealer:
        key = SealSecret(scheme.scheme.ring, np.array(self.key(case), np.int8))
        return FedmlHeSealer(scheme, key, fedml_he.GROUP_KEY, rank)

    def opener(self, case: Case, scheme: FedmlHeAdder, ranks: Sequence[int]) -> SealOpener:
        key = SealSecret(scheme.scheme.ring, np.array(self.key(case), np.int8))
        return SealOpener(scheme, key, fedml_he.GROUP_KEY)


SCHEMES: dict[str, Kind] = {
    "flashe": FlasheKind(),
    "flashe_sparse": FlasheKind(),
    "sash": SashKind(),
    "eshe": EsaflKind(),
    "batchcrypt": BatchCryptKind(),
    "ckks": FedmlHeKind(),
}
"""File -> what it holds."""
