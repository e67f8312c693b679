"""How the files of tests/vectors tell of each scheme: what the case of one is made of, by either side.

A kind makes the outputs of a case from its inputs twice, by the second implementation and by the
library; a case that must fail goes through its steps by the library. Files that are older than others
say less: they are brought to one form here.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.keys.derive import hkdf as derive
from flhe.math.prg import AesCtr, FieldElements
from flhe.math.ring import add
from flhe.math.sampling import Gaussian
from flhe.schemes.eshe import Eshe, EsheOpener, EsheSealer
from flhe.schemes.eshe_keys import EsheKey, draw_own, from_elements
from flhe.schemes.flashe import Flashe, FlasheOpener, FlasheSealer
from flhe.schemes.paillier import Paillier, PaillierOpener
from flhe.schemes.sash import Sash, SashOpener, SashSealer
from flhe.schemes.shprg import public_key
from flhe.schemes.sparse import covered, senders_at
from flhe.sealed import Sealed, Slot
from tests.reference import batchcrypt, beside, esafl
from tests.reference.batchcrypt import BatchCryptBook
from tests.reference.esafl import EsaflBook
from tests.reference.fedml_he import unpacked_key
from tests.reference.field import Q, elements
from tests.reference.flashe import FlasheBook
from tests.reference.mixing import Both
from tests.reference.sash import PRESETS, SashBook
from tests.reference.support import coordinates
from tests.reference.wire import (
    NEAR,
    Clear,
    Wire,
    columns,
    context,
    hashed,
    header,
    little,
    numbers,
    total_of,
)

Case = dict[str, Any]
Steps = Generator[str, None, Any]
"""Names of steps, each before it is taken."""


class SchemeKind:
    """One file of sums; a subclass says what is its scheme's own."""

    floats: int | None = None
    """Coordinates that messages may have supports of, where a reader says so."""

    judged: tuple[str, ...] = ()
    """Words of refusals for which the second implementation does not open a sum either."""

    def cases(self, contents: Case) -> list[Case]:
        """All of the file."""
        found: list[Case] = contents["cases"]
        return found

    def told(self, _made: Case) -> Case:
        """What was made, by names that the file has for it alone."""
        return {}

    def reference(self, case: Case) -> Case:
        """What the second implementation makes of the inputs."""
        return self._made(case, by_library=False)

    def library(self, case: Case) -> Case:
        """What the library makes of them."""
        if "at" in case:
            return {"opened": finish(self.steps(case))}
        return self._made(case, by_library=True)

    def _made(self, case: Case, *, by_library: bool) -> Case:
        both = self.both(case)
        book, long = both.book, case.get("hashed", False)
        clears = {part["rank"]: self.clear(case, part) for part in case["parts"]}
        if by_library and both.exact:
            wires = {r: both.seal(r, clear, prepare=r % 2 > 0) for r, clear in clears.items()}
        else:
            wires = {r: book.seal(r, clear) for r, clear in clears.items()}
        extra = self.library_extra(case, both) if by_library else self.book_extra(case, book)
        about, of_part, of_sum = extra

        def told(data: bytes) -> str:
            return hashed(data) if long else data.hex()

        def listed(values: list[int]) -> Any:
            return self.hashed(values) if long else values

        parts, sums = [], []
        for part in case["parts"]:
            wire = wires[part["rank"]]
            found = {"ciphertext": told(wire.data), "header": book.header(wire).hex()}
            found |= {"support": told(b"".join(wire.supports))} | of_part(part["rank"])
            parts.append({name: found.get(name, value) for name, value in part.items()})
        maker = both if by_library else book
        for expected in case["sums"]:
            chosen = [wires[rank] for rank in expected["senders"]]
            wire = maker.add(chosen)
            assert wire == maker.add(chosen[::-1])
            opened = maker.open(wire)
            assert opened == total_of([clears[rank] for rank in expected["senders"]])
            digest = hashed(book.header(wire) + wire.data)
            if by_library:
                digest = both.sealed(wire).digest().hex()
            found = dict.fromkeys(("data", "ciphertext"), told(wire.data))
            found |= {"header": book.header(wire).hex(), "digest": digest}
            found |= {"total": hashed(wire.data)} | dict.fromkeys(
                ("opened", "plain"), listed(opened)
            )
            found |= of_sum(wire, listed)
            sums.append({name: found.get(name, value) for name, value in expected.items()})
        return about | {"parts": parts, "sums": sums}

    def hashed(self, values: list[int]) -> str:
        """What stands for a long list."""
        return hashed(json.dumps(values).encode())

    def clear(self, case: Case, part: Case) -> Clear:
        """What a sender encrypts."""
        size, values = case["length"] + case["extras"], part["values"]
        if case.get("hashed"):
            values = numbers(size, case["bits"], part["rank"])
        return Clear(values[: case["length"]], values[case["length"] :])

    def both(self, case: Case) -> Both:
        """Both implementations of its scheme, with everybody's keys."""
        raise NotImplementedError

    def book_extra(self, case: Case, book: Any) -> Any:
        """(of the case, of a rank, of a sum): what the file says besides."""
        return book.about(), lambda _rank: {}, lambda _wire, _listed: {}

    def library_extra(self, case: Case, both: Both) -> Any:
        """The same by the library."""
        return {}, lambda _rank: {}, lambda _wire, _listed: {}

    # --- what must fail ---

    def scheme(self, case: Case) -> Any:
        raise NotImplementedError

    def sealer(self, case: Case, scheme: Any) -> Any:
        raise NotImplementedError

    def opener(self, case: Case, scheme: Any) -> Any:
        raise NotImplementedError

    def judge(self, case: Case, wire: Wire, slot: Case) -> None:
        """The second implementation opens what must fail: a ValueError."""
        raise NotImplementedError

    def steps(self, case: Case) -> Steps:
        """All steps to the case's own."""
        yield "scheme"
        scheme = self.scheme(case)
        if case["at"] in ("sealer", "encrypt"):
            yield "sealer"
            sealer = self.sealer(case, scheme)
            for _ in range(case.get("times", 1)):
                yield "encrypt"
                sealer.encrypt(*plain_of(case), mode=case["mode"], support=support_of(case))
        read = []
        for message in case.get("messages", ()):
            yield "from_parts"
            read.append(sealed_of(message, self.floats))
        if case["at"] == "open":
            yield "open"
            return self.opener(case, scheme).decrypt(read[0]).tolist()
        total = None
        for part in read:
            yield "add"
            total = scheme.add(total, part)
        return None


def finish(steps: Steps, reached: list[str] | None = None) -> Any:
    """Take all of them, noting each; returns what the last one gave."""
    while True:
        try:
            step = next(steps)
        except StopIteration as done:
            return done.value
        if reached is not None:
            reached.append(step)


def plain_of(case: Case) -> tuple[Plain, Slot]:
    values, extras = np.array(case["values"]), np.array(case["extras"], np.int64)
    coords = None if case.get("coords") is None else np.array(case["coords"], np.uint32)
    return Plain(values, extras, coords), Slot(*context(case["slot"]))


def support_of(case: Case) -> Support | None:
    coords = case.get("support")
    return None if coords is None else Support.of(np.array(coords, np.uint32), 20)


def sealed_of(message: Case, floats: int | None = None) -> Sealed:
    body = np.frombuffer(bytes.fromhex(message["body"]), np.uint8)
    return Sealed.from_parts(bytes.fromhex(message["header"]), body, floats=floats)


def message_of(head: bytes, body: bytes) -> Case:
    return {"header": head.hex(), "body": body.hex()}


# --- FLASHE ---


class FlasheKind(SchemeKind):
    """Dense: cases that must fail are told as changes of a good one."""

    key = bytes(range(32)).hex()

    def cases(self, contents: Case) -> list[Case]:
        return [self._failing(c) if "error" in c else c for c in contents["cases"]]

    def _failing(self, case: Case) -> Case:
        at = {"configure": "scheme", "seal": "sealer", "decrypt": "open", "header": "from_parts"}
        made = case | {"at": at.get(case["at"], case["at"]), "key": self.key, "slot": NEAR}
        made |= {"values": case["plain"], "extras": [], "mode": "", "rank": case.get("rank", 0)}
        if made["at"] not in ("add", "open", "from_parts"):
            return made
        change, senders = case.get("change", {}), case.get("senders", [0])
        first = self.both(made).book.seal(0, Clear(case["plain"], []))
        slot = NEAR | {name: change[name] for name in NEAR if name in change}
        ranks = senders[1:] or [1] if made["at"] == "add" else senders
        wire = replace(first, senders=tuple(ranks), length=change.get("length", first.length))
        head = header(change.get("scheme", "flashe"), "", slot, wire)
        if made["at"] == "from_parts":
            head = bytes.fromhex(case["header"])
        if made["at"] == "open" and senders not in ([0], [0, 3]):
            made["at"] = "from_parts"  # nothing that was said of these senders is read at all
        messages = [message_of(head, first.body)]
        if made["at"] == "add":
            messages.insert(0, message_of(self.both(made).book.header(first), first.body))
        return made | {"messages": messages}

    def both(self, case: Case) -> Both:
        key, slot = bytes.fromhex(case["key"]), case["slot"]
        book = FlasheBook(case["cohort"], case["bits"], case["masking"], slot=slot, key=key)
        return beside.flashe(book)

    def clear(self, case: Case, part: Case) -> Clear:
        return Clear(part["plain"], [])

    def library_extra(self, case: Case, both: Both) -> Any:
        scheme: Any = both.scheme
        return {"lane_bits": scheme.lane_bits}, *super().library_extra(case, both)[1:]

    def scheme(self, case: Case) -> Flashe:
        return Flashe(case["cohort"], case["bits"], case["masking"])

    def sealer(self, case: Case, scheme: Flashe) -> FlasheSealer:
        return FlasheSealer(scheme, bytes.fromhex(case["key"]), case["rank"])

    def opener(self, case: Case, scheme: Flashe) -> FlasheOpener:
        return FlasheOpener(scheme, bytes.fromhex(case["key"]))


class SparseKind(FlasheKind):
    """Sparse: a long case has hashes, and coordinates by a formula."""

    def cases(self, contents: Case) -> list[Case]:
        return SchemeKind.cases(self, contents)

    def hashed(self, values: list[int]) -> str:
        return hashed(little(values))

    def both(self, case: Case) -> Both:
        key, slot, masking = bytes.fromhex(case["key"]), case["slot"], case["masking"]
        scheme = case["cohort"], case["bits"], masking, case["mode"], case["length"]
        return beside.flashe(FlasheBook(*scheme, sparse=True, slot=slot, key=key))

    def clear(self, case: Case, part: Case) -> Clear:
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
            coords = covered(supports)
            counts = senders_at(supports, coords)
            return {"coords": listed(coords.tolist()), "counts": listed(counts.tolist())}

        return *super().library_extra(case, both)[:2], of_sum


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
    key: NDArray[np.int32] = np.sum(owns, axis=0, dtype=np.int32) * np.int32(told["times"])
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
        whole = np.sum(list(keys.values()), axis=0, dtype=np.int32)
        about = {"width": slots.width, "slots": slots.per, "limb_bits": scheme.sizes.limb_bits}
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
        key = columns([esafl.gaussian(bytes.fromhex(seed), n) for seed in told["seeds"]])
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
    """All senders in one sum; what must fail is the first sender's ciphertext."""

    judged = ("",)

    def cases(self, contents: Case) -> list[Case]:
        key = batchcrypt.pair()
        assert contents["key"] == {"p": f"{key.p:x}", "q": f"{key.q:x}"}
        assert contents["group_key"] == batchcrypt.GROUP_KEY.hex()
        good = [self._normal(case) for case in contents["cases"]]
        return good + [one for case in contents["failing"] for one in self._failing(case)]

    def _normal(self, case: Case) -> Case:
        parts = [{"rank": rank, "values": values} for rank, values in enumerate(case["plain"])]
        for part, ciphertext in zip(parts, case["ciphertexts"], strict=False):
            part["ciphertext"] = ciphertext
        senders = list(range(len(parts)))
        sums = [{"senders": senders, "data": case["total"], "opened": case["sum"]}]
        length = len(case["sum"]) - case["extras"]
        return case | {"parts": parts, "sums": sums, "length": length}

    def told(self, made: Case) -> Case:
        (total,), first = made["sums"], made["parts"][0]
        ciphertexts = [first["ciphertext"]]
        return {"ciphertexts": ciphertexts, "total": total["data"], "sum": total["opened"]}

    def _failing(self, case: Case) -> Iterator[Case]:
        """What `add` refuses is refused alone, into a sum, and by those who open it."""
        says = re.escape(case["says"])
        made = {"name": case["name"], "cohort": 3, "bits": 16, "runs": (), "slot": NEAR}
        wire = Wire((0,), case["length"], bytes.fromhex(case["data"]))
        bad = message_of(header("batchcrypt", "", NEAR, wire), wire.data)
        made |= {"messages": [bad], "error": "ProtocolError", "says": says}
        if case["step"] == "add":
            book = BatchCryptBook(3, 16, (), {1: bytes(range(256)) * 8})
            good = book.seal(1, Clear([0] * 150, []))
            yield made | {"at": "add"}
            yield made | {"at": "add", "messages": [message_of(book.header(good), good.data), bad]}
        yield made | {"at": "open", "says": f"{says}.*; the round is refused"}

    def both(self, case: Case) -> Both:
        book = BatchCryptBook(case["cohort"], case["bits"], tuple(case["runs"]), {}, case["slot"])
        batches = len(book.layout(case["length"] + case["extras"]))
        for rank, seed in enumerate(case["random"]):
            book.tapes[rank] = random.Random(seed).randbytes(128 * batches)
        return beside.batchcrypt_(book)

    def library_extra(self, case: Case, both: Both) -> Any:
        batch = self.scheme(case).batch
        told = {"slot_bits": batch.width, "slots": batch.per}
        return told, *super().library_extra(case, both)[1:]

    def scheme(self, case: Case) -> Paillier:
        scheme = beside.batchcrypt_(BatchCryptBook(case["cohort"], case["bits"])).scheme
        assert isinstance(scheme, Paillier)
        return replace(scheme, runs=tuple(case["runs"]))

    def opener(self, case: Case, scheme: Paillier) -> PaillierOpener:
        opener = beside.batchcrypt_(BatchCryptBook(3, 16)).opener((0,))
        assert isinstance(opener, PaillierOpener)
        return replace(opener, scheme=scheme)

    def judge(self, case: Case, wire: Wire, slot: Case) -> None:
        BatchCryptBook(case["cohort"], case["bits"], slot=slot).open(wire)


# --- FedML-HE ---


class FedmlHeKind(SchemeKind):
    """All senders in one sum; the key is in the file, five coefficients a byte."""

    def cases(self, contents: Case) -> list[Case]:
        return [
            case
            | {
                "name": f"{case['bits']} bits",
                "length": len(case["opened"]),
                "extras": 0,
                "sums": [
                    {
                        "senders": [part["rank"] for part in case["parts"]],
                        "total": case["total"],
                        "opened": case["opened"],
                    }
                ],
            }
            for case in contents["cases"]
        ]

    def told(self, made: Case) -> Case:
        return {name: made["sums"][0][name] for name in ("total", "opened")}

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
    "flashe_sparse": SparseKind(),
    "sash": SashKind(),
    "eshe": EsaflKind(),
    "batchcrypt": BatchCryptKind(),
    "ckks": FedmlHeKind(),
}
"""File -> what it holds."""
