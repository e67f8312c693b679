"""Every file of vectors: made by the second implementation, made by the library, and refused by it.

Files are data, and this is the one module that walks them: from the inputs of a case both
implementations make its outputs, and these are held against the file. Files of the parts of schemes
stand as they are, and are held against the library alone. What must fail fails at its own step and in
its own words, and all steps before pass; where the second implementation reads as well, it refuses
the same. `python -m tests.schemes.test_vectors FILE...` writes outputs of schemes anew.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import pytest

from flhe import errors
from flhe.math import sampling
from flhe.schemes.esafl.scheme import Esafl
from tests.reference.gaussian import thresholds
from tests.reference.kinds import Kind, finish
from tests.reference.part_formats import PARTS, STEPS, DerivedKind, words
from tests.reference.schemes import SCHEMES

FOLDER = pathlib.Path(__file__).parents[1] / "vectors"
Case = dict[str, Any]

KINDS: dict[str, Any] = {**SCHEMES, **PARTS}
READ: dict[str, Case] = {name: json.loads((FOLDER / f"{name}.json").read_text()) for name in KINDS}


def named(name: str, case: Case) -> str:
    told = [case.get(k) for k in ("at", "name", "cohort", "bits", "masking", "mode", "n", "length")]
    return "-".join([name, *(str(x) for x in told if x not in (None, ""))])


CASES = [(KINDS[name], case, named(name, case)) for name in KINDS for case in READ[name]["cases"]]
WRITTEN = [
    pytest.param(kind, case, id=name)
    for kind, case, name in CASES
    if isinstance(kind, Kind) and "error" not in case
]
CASES += [(DerivedKind(), case, case["name"]) for case in READ["flashe_sparse"]["derived"]]
GOOD = [pytest.param(kind, case, id=name) for kind, case, name in CASES if "error" not in case]
BAD = [pytest.param(kind, case, id=name) for kind, case, name in CASES if "error" in case]
SLOW, SWEPT = (
    [pytest.param(SCHEMES["eshe"], case, id=case["name"], marks=m) for case in READ["eshe"]["slow"]]
    for m in ([], [pytest.mark.sweep])
)


def is_told(case: Case, made: Case) -> None:
    """All that was made stands in the case, and at least something was."""
    common = case.keys() & made.keys()
    assert common
    assert {name: made[name] for name in common} == {name: case[name] for name in common}


@pytest.mark.parametrize(("kind", "case"), WRITTEN + SWEPT)
def test_the_second_implementation_writes_it(kind: Any, case: Case) -> None:
    is_told(case, kind.reference(case))


@pytest.mark.parametrize(("kind", "case"), GOOD + SLOW)
def test_the_library_writes_it(kind: Any, case: Case) -> None:
    is_told(case, kind.library(case))


@pytest.mark.parametrize(("kind", "case"), BAD)
def test_what_must_fail(kind: Any, case: Case) -> None:
    """At its own step and its last message; all before it pass."""
    says = case.get("says", case.get("text", STEPS.get(case["at"], "")))
    reached: list[str] = []
    with pytest.raises(errors.FlheError, match=says or None) as caught:
        finish(kind.steps(case), reached)
    assert type(caught.value).__name__ == case["error"]
    times = {"add": len(case.get("messages", "1")), "encrypt": case.get("times", 1)}
    assert reached[-1] == case["at"]
    assert reached.count(case["at"]) == times.get(case["at"], 1)


def test_tables_of_esafl() -> None:
    told = READ["eshe"]
    for table in (thresholds(), sampling.thresholds()):
        assert words(table) == told["thresholds"]
    for ring, cohort, bits, *expected in told["sizes"]:
        sizes = Esafl(ring=ring, keys="joint").adder(cohort, bits).sizes
        slots = sizes.slots
        moduli = [f"{q:x}" for q in slots.moduli]
        assert [slots.width, slots.per, sizes.limb_bits, moduli] == expected


def main(names: list[str]) -> None:
    """Write the outputs of these files' good cases anew; what must fail stays as it is."""
    for name in names or SCHEMES:
        path, contents = FOLDER / f"{name}.json", READ[name]
        before = json.dumps(contents)
        for case in [*contents["cases"], *contents.get("slow", [])]:
            if "error" not in case:
                made = SCHEMES[name].reference(case)
                case |= {field: made[field] for field in case.keys() & made.keys()}
        written = json.dumps(contents)
        if written != before:
            first = next(iter(contents["cases"][0]))
            path.write_text(written.replace(f'{{"{first}"', f'\n{{"{first}"') + "\n")
        print(f"{path.name}: {'changed' if written != before else 'as it was'}")


if __name__ == "__main__":
    main(sys.argv[1:])
