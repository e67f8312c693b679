"""How the files of tests/vectors tell of each scheme: parameters, keys, what they say besides."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.math.prg import AesCtr, FieldElements
from flhe.math.ring import add
from flhe.math.sampling import Gaussian
from flhe.schemes.batchcrypt.scheme import Paillier, PaillierOpener
from flhe.schemes.esafl.keys import EsheKey, draw_own, from_elements
from flhe.schemes.esafl.scheme import Eshe, EsheOpener, EsheSealer
from flhe.schemes.flashe.scheme import Flashe, FlasheOpener, FlasheSealer
from flhe.schemes.flashe.sparse import covered
from flhe.schemes.sash.generator import public_key
from flhe.schemes.sash.scheme import Sash, SashOpener, SashSealer
from flhe.wire.derive import hkdf as derive
from tests.reference import beside, esafl
from tests.reference.batchcrypt import BatchCryptBook
from tests.reference.esafl import EsaflBook
from tests.reference.fedml_he import unpacked_key
from tests.reference.field import Q, elements
from tests.reference.flashe import FlasheBook
from tests.reference.gaussian import gaussian
from tests.reference.kind import Case, SchemeKind, Steps, sealed_of
from tests.reference.mixing import Both
from tests.reference.sash import PRESETS, SashBook
from tests.reference.support import coordinates
from tests.reference.wire import (
    Clear,
    Wire,
    columns,
    hashed,
    little,
    numbers,
)

# --- FLASHE ---


class FlasheKind(SchemeKind):
    """Dense and sparse; a long case has hashes, and coordinates by a formula."""

    def hashed(self, values: list[int]) -> str:
        return hashed(little(values))

    def both(self, case: Case) -> Both:
        scheme = case["cohort"], case["bits"], case["masking"], case["mode"], case["length"]
        sparse = "coords" in case["parts"][0]
        key = bytes.fromhex(case["key"])
        return beside.flashe(FlasheBook(*scheme, sparse=sparse, slot=case["slot"], key=key))

    def clear(self, case: Case, part: Case) -> Clear:
        if "coords" not in part:
            return super().clear(case, part)
        coords, values = part["coords"], part["values"]
        if case.get("hashed"):
            coords = [d for d in range(case["length"]) if d % (part["rank"] + 3)]
            values = numbers(len(coords), case["bits"], part["rank"])
        return Clear(values, part["extras"], coords)

    def book_extra(self, case: Case, book: Any) -> Any:
        def of_sum(wire: Wire, listed: Callable[[list[int]], Any]) -> Case:
            sets = [set(coordinates(support)) for support in wire.supports]
            union = sorted(set().union(*sets))
            counts = [sum(d in one for one in sets) for d in union]
            return {"coords": listed(union), "counts": listed(counts)}

        return book.about(), lambda _rank: {}, of_sum

    def library_extra(self, case: Case, both: Both) -> Any:
        def of_sum(wire: Wire, listed: Callable[[list[int]], Any]) -> Case:
            supports = both.sealed(wire).supports
            return {"coords": listed(covered(supports).tolist() if supports else [])}

        return {"lane_bits": self.scheme(case).lane_bits}, lambda _rank: {}, of_sum

    def scheme(self, case: Case) -> Flashe:
        return Flashe(case["cohort"], case["bits"], case["masking"])

    def sealer(self, case: Case, scheme: Flashe) -> FlasheSealer:
        return FlasheSealer(scheme, bytes.fromhex(case["key"]), case["rank"])

    def opener(self, case: Case, scheme: Flashe) -> FlasheOpener:
        return FlasheOpener(scheme, bytes.fromhex(case["key"]))


# --- SASH ---


class SashKind(SchemeKind):
    """Seeds are block 0 under a key."""

    judged = ("other seeds", "altered")

    def both(self, case: Case) -> Both:
        mu = PRESETS[case["preset"]]
        tapes = {
            part["rank"]: little(elements(bytes.fromhex(part["seed_key"]), 0, mu))
            for part in case["parts"]
        }
        return beside.sash(
            SashBook(case["cohort"], case["bits"], case["preset"], tapes, case["slot"])
        )

    def book_extra(self, case: Case, book: Any) -> Any:
        long = case.get("hashed", False)
        return book.about(), book.of_part, lambda wire, _listed: book.of_sum(wire, long)

    def library_extra(self, case: Case, both: Both) -> Any:
        scheme, seeds = self.scheme(case), {}
        public = public_key(scheme.parameters_of_prg, both.at).hex()

        def of_part(rank: int) -> Case:
            seeds[rank] = both.sealers[rank].take_seed(both.at)
            return {"seed": hashed(little(seeds[rank].tolist()))}

        def of_sum(wire: Wire, _listed: Any) -> Case:
            total = functools.reduce(add, [seeds[rank] for rank in wire.senders])
            return {"seed": hashed(little(total.tolist()))}

        return {"guard": scheme.guard, "public": public}, of_part, of_sum

    def scheme(self, case: Case) -> Sash:
        return Sash(case["cohort"], case["bits"], case["preset"], case["unmask"])

    def sealer(self, case: Case, scheme: Sash) -> SashSealer:
        return SashSealer(scheme, case["rank"])

    def opener(self, case: Case, scheme: Sash) -> SashOpener:
        return SashOpener(scheme, np.array(self._seed(case), np.uint64))

    def judge(self, case: Case, wire: Wire, slot: Case) -> None:
        SashBook(case["cohort"], slot=slot).unmask(wire, self._seed(case))

    def _seed(self, case: Case) -> list[int]:
        """The sum of some seeds, with a number added to the first element."""
        mu = PRESETS[case["preset"]]
        seed = columns([elements(bytes.fromhex(key), 0, mu) for key in case["seeds"]], Q)
        return [(seed[0] + int(case["plus"], 16)) % Q, *seed[1:]]


# --- ESAFL ---


def giving(*chunks: bytes) -> Callable[[int], bytes]:
    """A random source that is asked for these, in order and for nothing else."""
    left = list(chunks)

    def source(count: int) -> bytes:
        chunk = left.pop(0)
        assert len(chunk) == count
        return chunk

    return source


def drawn_key(told: Case | None) -> NDArray[np.int32] | None:
    """Of the library: the sum of some, times a number, with a number added to coefficient 0."""
    if told is None:
        return None
    owns = [draw_own(told["n"], giving(bytes.fromhex(seed))) for seed in told["seeds"]]
    total = np.array(owns, np.int32).sum(axis=0, dtype=np.int32, keepdims=True)[0]
    key: NDArray[np.int32] = total * np.int32(told["times"])
    key[0] += told["first"]
    return key


class EsaflKind(SchemeKind):
    """Keys and errors are drawn from seeds."""

    floats = 20
    judged = ("noise beyond", "a slot beyond what", "the last value is not", "below its modulus")

    def both(self, case: Case) -> Both:
        key, about = bytes.fromhex(case["group_key"]), (case["ring"], case["keys"], case["slot"])
        return beside.esafl_(EsaflBook(case["cohort"], case["bits"], *about, key))

    def book_extra(self, case: Case, book: Any) -> Any:
        long, ranks = case.get("hashed", False), [part["rank"] for part in case["parts"]]
        return (
            book.about(case["length"] + case["extras"]),
            lambda rank: book.of_part(rank, ranks),
            lambda wire, _listed: book.of_sum(wire, long),
        )

    def library_extra(self, case: Case, both: Both) -> Any:
        scheme, n, shares = self.scheme(case), self.scheme(case).sizes.n, {}
        slots, size = scheme.sizes.slots, case["length"] + case["extras"]
        owns = {part["rank"]: bytes.fromhex(part["key_seed"]) for part in case["parts"]}
        keys = {rank: draw_own(n, giving(seed)) for rank, seed in owns.items()}
        whole = np.array(list(keys.values()), np.int32).sum(axis=0, dtype=np.int32, keepdims=True)[
            0
        ]
        about: Case = {"width": slots.width, "slots": slots.per}
        about["limb_bits"] = scheme.sizes.limb_bits
        about |= {"moduli": [f"{q:x}" for q in slots.moduli], "a": []}
        group_key, bound = bytes.fromhex(case["group_key"]), (*both.at.context(), case["ring"])
        blocks = range(-(-slots.count(size) // n))
        for ((limb, q), j), told in zip(
            itertools.product(enumerate(slots.moduli), blocks), case["a"], strict=True
        ):
            a_key = derive(group_key, "eshe-a", *bound, limb)
            values = hashed(FieldElements(AesCtr(), a_key, q).block(j, n).tobytes())
            about["a"].append(told | {"key": a_key.hex(), "block": j, "values": values})

        def of_part(rank: int) -> Case:
            key = EsheKey(keys[rank], whole)
            told = {"own": hashed(keys[rank].tobytes()), "file": hashed(key.to_bytes())}
            assert np.array_equal(EsheKey.from_bytes(key.to_bytes()).total, whole)
            if case["keys"] == "round":
                shares[rank] = both.sealers[rank].take_seed(both.at)
                told["elements"] = hashed(little(shares[rank].tolist()))
            return told

        def of_sum(wire: Wire, listed: Callable[[list[int]], Any]) -> Case:
            key = np.sum([keys[rank] for rank in wire.senders], axis=0, dtype=np.int32)
            if shares:
                summed = functools.reduce(add, [shares[rank] for rank in wire.senders])
                assert np.array_equal(from_elements(summed, n, case["cohort"]), key)
            drawn = [
                Gaussian().draw(slots.count(wire.length), giving(esafl.noise_seed(rank))).tolist()
                for rank in wire.senders
            ]
            bound = slots.noise_bound(len(wire.senders))
            told = {"noise": listed(columns(drawn)), "noise_bound": bound}
            return told | {"key": hashed(key.astype("<i4").tobytes())}

        return about, of_part, of_sum

    def scheme(self, case: Case) -> Eshe:
        key_id = bytes.fromhex(case.get("key_id", ""))
        return Eshe(case["cohort"], case["bits"], case["ring"], case["keys"], key_id)

    def sealer(self, case: Case, scheme: Eshe) -> EsheSealer:
        own, total = drawn_key(case["own"]), drawn_key(case["total"])
        key = None if own is None or total is None else EsheKey(own.astype(np.int8), total)
        return EsheSealer(scheme, bytes.fromhex(case["group_key"]), case["rank"], key)

    def opener(self, case: Case, scheme: Eshe) -> EsheOpener:
        key = drawn_key(case["total"])
        assert key is not None
        return EsheOpener(scheme, bytes.fromhex(case["group_key"]), key)

    def judge(self, case: Case, wire: Wire, slot: Case) -> None:
        about = case["ring"], case["keys"], slot, bytes.fromhex(case["group_key"])
        book = EsaflBook(case["cohort"], case["bits"], *about)
        book.unmask(wire, self._key(case, book.n))

    def reference(self, case: Case) -> Case:
        """Also of one step, where it must not fail."""
        if case.get("at") == "elements":
            return {"opened": esafl.key_of(range(case["cohort"]), case["n"])}
        if case.get("at") == "open":
            sealed = sealed_of(case["messages"][0])
            wire = Wire(sealed.senders, sealed.length, sealed.data.tobytes())
            book = self.both(case).book
            assert isinstance(book, EsaflBook)
            return {"opened": book.unmask(wire, self._key(case, book.n))[0]}
        return super().reference(case)

    def _key(self, case: Case, n: int) -> list[int]:
        told = case["total"]
        key = columns([gaussian(bytes.fromhex(seed), n) for seed in told["seeds"]])
        return [key[0] * told["times"] + told["first"], *(x * told["times"] for x in key[1:])]

    def steps(self, case: Case) -> Steps:
        if case["at"] == "key":
            yield "key"
            return EsheKey.from_bytes(bytes.fromhex(case["file"]))
        if case["at"] == "elements":
            yield "elements"
            told = np.frombuffer(bytes.fromhex(case["elements"]), "<u8").astype(np.uint64)
            return from_elements(told, case["n"], case["cohort"]).tolist()
        return (yield from super().steps(case))


# --- BatchCrypt ---


class BatchCryptKind(SchemeKind):
    """Under one key; what must fail is the first sender's ciphertext."""

    judged = ("",)

    def both(self, case: Case) -> Both:
        book = BatchCryptBook(case["cohort"], case["bits"], {}, case["slot"])
        batches = len(book.layout(case["length"] + case["extras"]))
        for part in case["parts"]:
            drawn = random.Random(part["random"]).randbytes(128 * batches)
            book.tapes[part["rank"]] = drawn
        return beside.batchcrypt_(book)

    def library_extra(self, case: Case, both: Both) -> Any:
        batch = self.scheme(case).batch
        told = {"slot_bits": batch.width, "slots": batch.per}
        return told, *super().library_extra(case, both)[1:]

    def scheme(self, case: Case) -> Paillier:
        scheme = beside.batchcrypt_(BatchCryptBook(case["cohort"], case["bits"])).scheme
        assert isinstance(scheme, Paillier)
        return scheme

    def opener(self, case: Case, scheme: Paillier) -> PaillierOpener:
        opener = beside.batchcrypt_(BatchCryptBook(3, 16)).opener((0,))
        assert isinstance(opener, PaillierOpener)
        return replace(opener, scheme=scheme)

    def judge(self, case: Case, wire: Wire, slot: Case) -> None:
        BatchCryptBook(case["cohort"], case["bits"], slot=slot).open(wire)


# --- FedML-HE ---


class FedmlHeKind(SchemeKind):
    """The key is in the file, five coefficients a byte."""

    def both(self, case: Case) -> Both:
        key = unpacked_key(bytes.fromhex(case["key"]), int(case["ring"]))
        book = beside.fedml_he_book(case["cohort"], case["bits"], case["ring"], key, case["slot"])
        return beside.fedml_he_(book)

    def library_extra(self, case: Case, both: Both) -> Any:
        told: Any = both.scheme.parameters()
        about = {name: told[name] for name in ("slot_bits", "slots", "scale_bits")}
        about["modulus"] = told["modulus"].hex().lstrip("0")
        return about, *super().library_extra(case, both)[1:]


SCHEMES: dict[str, SchemeKind] = {
    "flashe": FlasheKind(),
    "flashe_sparse": FlasheKind(),
    "sash": SashKind(),
    "eshe": EsaflKind(),
    "batchcrypt": BatchCryptKind(),
    "ckks": FedmlHeKind(),
}
"""File -> what it holds."""
