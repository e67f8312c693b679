"""What a file of tests/vectors says of sums: outputs from inputs, and steps that must fail.

A kind makes the outputs of a case twice, by the second implementation and by the library; a case that
must fail goes through its steps by the library.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import numpy as np

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.schemes.sealed import Sealed, Slot
from tests.reference.mixing import Both
from tests.reference.wire import (
    Clear,
    Wire,
    context,
    hashed,
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
            found = {"data": told(wire.data), "sha256": hashed(wire.data)}
            found |= {"header": book.header(wire).hex(), "digest": digest}
            found |= {"opened": listed(opened)} | of_sum(wire, listed)
            sums.append({name: found.get(name, value) for name, value in expected.items()})
        return {**about, "parts": parts, "sums": sums}

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
