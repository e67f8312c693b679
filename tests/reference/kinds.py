"""What a case says of sums: outputs from inputs, by either implementation, and steps that must fail.

A case is one of a file of tests/vectors, or drawn: parameters, keys and a slot, named as in a file.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.schemes.sealed import Sealed, Slot
from tests.reference.wire import Book, Clear, Wire, context, hashed, numbers, total_of

Case = dict[str, Any]
Steps = Generator[str, None, Any]
"""Names of steps, each before it is taken."""


class Kind:
    """How cases tell of one scheme.

    A subclass makes `book(case)`, the second implementation, and of the library `scheme(case)`, a new
    `sealer(case, scheme, rank)` and an `opener(case, scheme, ranks)` for a sum of these.
    """

    floats: int | None = None
    """Coordinates that messages may have supports of, where a reader says so."""

    exact = True
    """Whether both implementations make the same ciphertexts, and refuse the very same sums."""

    def is_sparse(self, case: Case) -> bool:
        """Whether senders choose coordinates."""
        return False

    def any_set(self, case: Case) -> bool:
        """Whether a sum of other senders can be looked at: there are keys for them."""
        return not self.is_sparse(case)

    def of_part(self, both: Both, rank: int) -> Case:
        """What a file says of one sender besides, by the library."""
        return {}

    # --- outputs from inputs ---

    def reference(self, case: Case) -> Case:
        """What the second implementation makes of the inputs."""
        return self._made(case, by_library=False)

    def library(self, case: Case) -> Case:
        """What the library makes of them."""
        if "at" in case:
            return {"opened": finish(self.steps(case))}
        return self._made(case, by_library=True)

    def _made(self, case: Case, *, by_library: bool) -> Case:
        both, long = Both(self, case), case.get("hashed", False)
        book, ranks = both.book, [part["rank"] for part in case["parts"]]
        maker = both if by_library else book
        clears = {part["rank"]: self.clear(case, part) for part in case["parts"]}
        sealing = maker if self.exact else book
        wires = {rank: sealing.seal(rank, clear) for rank, clear in clears.items()}

        def told(data: bytes) -> str:
            return hashed(data) if long else data.hex()

        parts, sums = [], []
        for part in case["parts"]:
            rank, wire = part["rank"], wires[part["rank"]]
            found = {"ciphertext": told(wire.data), "header": book.header(wire).hex()}
            found |= {"support": told(b"".join(wire.supports))}
            found |= self.of_part(both, rank) if by_library else book.of_part(rank, ranks)
            parts.append({name: found.get(name, value) for name, value in part.items()})
        for expected in case["sums"]:
            chosen = [wires[rank] for rank in expected["senders"]]
            wire = maker.add(chosen)
            assert wire == maker.add(chosen[::-1])
            opened = maker.open(wire)
            assert opened == total_of([clears[rank] for rank in expected["senders"]])
            digest = hashed(book.header(wire) + wire.data)
            if by_library:
                digest = both.sealed(wire).digest().hex()
            found = {"data": told(wire.data), "sha256": hashed(wire.data), "digest": digest}
            found |= {"header": book.header(wire).hex(), "opened": book.listed(opened, long)}
            found |= {} if by_library else book.of_sum(wire, long)
            sums.append({name: found.get(name, value) for name, value in expected.items()})
        size = case["length"] + case["extras"]
        about = {} if by_library else book.about(size)
        return {**about, "parts": parts, "sums": sums}

    def clear(self, case: Case, part: Case) -> Clear:
        """What a sender encrypts."""
        size, values = case["length"] + case["extras"], part["values"]
        if case.get("hashed"):
            values = numbers(size, case["bits"], part["rank"])
        return Clear(values[: case["length"]], values[case["length"] :])

    # --- what must fail ---

    def steps(self, case: Case) -> Steps:
        """All steps to the case's own."""
        yield "scheme"
        scheme = self.scheme(case)
        if case["at"] in ("sealer", "encrypt"):
            yield "sealer"
            sealer = self.sealer(case, scheme, case["rank"])
            for _ in range(case.get("times", 1)):
                yield "encrypt"
                sealer.encrypt(*plain_of(case), mode=case["mode"], support=support_of(case))
        read = []
        for message in case.get("messages", ()):
            yield "from_parts"
            read.append(sealed_of(message, self.floats))
        if case["at"] == "open":
            yield "open"
            return self.opener(case, scheme, read[0].senders).decrypt(read[0]).tolist()
        total = None
        for part in read:
            yield "add"
            total = scheme.add(total, part)
        return None


class Both:
    """The library's implementation beside the book's, in one case."""

    def __init__(self, kind: Kind, case: Case) -> None:
        self.kind, self.case = kind, case
        self.book: Book = kind.book(case)
        self.scheme = kind.scheme(case)
        self.at = Slot(*context(self.book.slot))
        self.mode: str = case.get("mode", "")
        self.floats = case["length"] if kind.is_sparse(case) else 0
        self.sealers: dict[int, Any] = {}
        """Those that sealed last, where they keep a seed."""

    def seal(self, rank: int, clear: Clear, prepare: bool | None = None) -> Wire:
        """By the library; odd ranks prepare unless it is said."""
        support, coords = None, None
        if clear.coords is not None:
            coords = np.array(clear.coords, np.uint32)
            support = Support.of(coords, self.floats)
        plain = Plain(np.array(clear.values, np.int32), np.array(clear.extras, np.int32), coords)
        sealer = self.sealers[rank] = self.kind.sealer(self.case, self.scheme, rank)
        if support is None and (rank % 2 > 0 if prepare is None else prepare):
            sealer.prepare(self.at, len(clear.lanes), self.mode)
        return self.wire(sealer.encrypt(plain, self.at, mode=self.mode, support=support))

    def add(self, parts: Sequence[Wire]) -> Wire:
        """By the library."""
        total = None
        for part in parts:
            total = self.scheme.add(total, self.sealed(part))
        assert total is not None
        return self.wire(self.scheme.close(total))

    def open(self, wire: Wire) -> list[int]:
        """By the library."""
        opener = self.kind.opener(self.case, self.scheme, wire.senders)
        opened: list[int] = opener.decrypt(self.sealed(wire)).tolist()
        return opened

    def sealed(self, wire: Wire) -> Sealed:
        """A message as the library reads it, under the book's header."""
        body = np.frombuffer(wire.body, np.uint8)
        return Sealed.from_parts(self.book.header(wire), body, floats=self.floats)

    def wire(self, sealed: Sealed) -> Wire:
        """What the library wrote; its header must be the book's."""
        supports = tuple(support.data for support in sealed.supports)
        wire = Wire(sealed.senders, sealed.length, sealed.data.tobytes(), supports)
        assert sealed.header() == self.book.header(wire)
        return wire


def finish(steps: Steps, reached: list[str] | None = None) -> Any:
    """Take all of them, noting each; returns what the last one gave."""
    while True:
        try:
            step = next(steps)
        except StopIteration as done:
            return done.value
        if reached is not None:
            reached.append(step)


def giving(*chunks: bytes) -> Callable[[int], bytes]:
    """A random source that is asked for these, in order and for nothing else."""
    left = list(chunks)

    def source(count: int) -> bytes:
        chunk = left.pop(0)
        assert len(chunk) == count
        return chunk

    return source


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
