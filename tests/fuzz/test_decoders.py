"""Mutants of every message, file and record: no crash, no hang, nothing large or taken wrongly.

A few of each type here; 10,000 of each with `-m sweep`.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

import pytest

from flhe.wire import canonical
from flhe.wire.record import _decoded
from tests.fuzz.declared import all_decoders, all_records, encoded, samples
from tests.fuzz.decoders import (
    NEVER,
    modules,
    run,
    take_honest,
    try_one,
)

FEW, MANY = 50, 10_000
READERS = {"from_bytes", "from_parts", "from_fields", "from_line", "from_parameters"}
"""Names of class methods that decode."""
FUNCTIONS = {"loads", "unpack", "unpacked", "from_bits", "from_elements"} | {
    "read_key",
    "read_answer",
}
"""Names of functions that do, besides those above."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)


sweep = (pytest.mark.sweep, pytest.mark.timeout(7200))


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=sweep)])
@pytest.mark.parametrize("name", list(all_decoders()))
def test_mutants(name: str, count: int) -> None:
    decoder = all_decoders()[name]
    take_honest(decoder)
    taken = run(decoder, count, seed=count)
    print(f"{name}: {count} mutants, {taken} taken as another honest value")
    assert taken == 0 or decoder.encode is not NEVER


@pytest.mark.parametrize("name", all_records())
def test_another_version_or_kind_or_length_is_refused(name: str) -> None:
    """What else a declaration does not allow is the same for all classes: `tests/wire` has it."""
    assert samples().get(name), "a class of records of which nothing honest is in tests/fuzz"
    record = samples()[name][0]
    form, honest = record.FORM, encoded(record)
    changed = [honest[:-1], honest + b"\0", canonical.dumps(7)]
    for at, head in enumerate(form.head):
        tree: Any = canonical.loads(honest, 64 << 20, "honest")
        tree[at if form.row else head] = {"v": form.version + 1, "kind": f"{form.kind}x"}[head]
        changed.append(canonical.dumps(tree))
    for data in changed:
        assert not try_one(all_decoders()[name], data), data[:99]


def test_no_decoder_is_missing() -> None:
    """All that reads bytes or fields of others reads those of some honest message here."""
    for decoder in all_decoders().values():
        take_honest(decoder)  # what is made once is made now, and not as a message is read
    _decoded.cache_clear()
    ran = set[CodeType]()

    def notes(frame: Any, *_: Any) -> None:
        ran.add(frame.f_code)

    sys.setprofile(notes)
    try:
        for decoder in all_decoders().values():
            for data in decoder.honest:
                decoder.decode(data)
    finally:
        sys.setprofile(None)
    missing = [code.co_qualname for code in _readers() if code not in ran]
    assert not missing, "a decoder without an entry in tests/fuzz"


def _readers() -> Iterator[CodeType]:
    for module in modules():
        for name, member in vars(module).items():
            if getattr(member, "__module__", None) != module.__name__:
                continue
            if inspect.isclass(member):  # what it inherits is named where it is written
                own = [vars(member)[method] for method in READERS & vars(member).keys()]
                yield from (m.__func__.__code__ for m in own if isinstance(m, classmethod))
            elif name in READERS | FUNCTIONS and inspect.isfunction(member):
                yield member.__code__
