"""Records: what their declarations say must be refused, is; made of the declarations, class by class.

Honest samples are all records that are made on the way of other decoders' honest messages, and a few
beside those. A class of records without any fails a test.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from random import Random
from typing import Annotated, Any, Literal, get_args, get_origin
from typing import get_type_hints as hints_of
from unittest import mock

from flhe.coding.laplace import Laplace
from flhe.coding.select import Select
from flhe.coding.update import update_codec
from flhe.keys.agreement import dealt
from flhe.keys.roster.limits import Limits
from flhe.keys.roster.roster import Roster
from flhe.node.claims import StoredNote
from flhe.node.journal import Journal, SignedSet
from flhe.node.node import StoredSession
from flhe.schemes.batchcrypt import residue_worker
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.registry import SCHEMES
from flhe.schemes.sash.scheme import Sash
from flhe.strategies.ledger import PendingSet
from flhe.training.contract import Contract
from flhe.training.optimizer import Optimizer
from flhe.training.schedule import Cosine, Settings, Step
from flhe.training.terms import Terms
from flhe.wire import canonical
from flhe.wire.fields import As, Given, Rule
from flhe.wire.record import RECORDS, Record, plan_of
from tests.fuzz import ciphertexts, masked, plain, signed, sites, stored
from tests.fuzz.decoders import Decoder, modules, take_honest
from tests.fuzz.group import IDS, ROSTER, exchange, source
from tests.fuzz.masked import TOLD, VOID
from tests.fuzz.mutations import EDGES, encode

MOST = 6
"""Samples of one class."""
SUMS = {"mean-squares": {3: bytes(32)}, "update": {1: bytes(32), 2: bytes(32)}}
WRONG = (None, True, 7, b"", b"x" * 32, "", "x", [], [0], {}, {"x": 0})
"""Values of every type in CBOR."""


def _more() -> list[Record]:
    """Honest records that no message holds, or not in all their ways."""
    e = exchange()
    return [
        *(e.advertised[0], e.shared[0], e.confirmed[0], e.epochs[0]),
        Roster.first_use(ROSTER.publics),
        Limits({"min-select": 0.25, "unpermuted": False, "min-members": 4}),
        Journal(bytes(16), bytes(16)),
        SignedSet(bytes(32), bytes(32), bytes(32), 3, True),
        *(VOID, VOID.promises[0], PendingSet(VOID, {0: b"signature"}, {1: b"answer"})),
        Journal(
            bytes(16), bytes(16), bytes(16), bytes(32), bytes(16), (3, 1, 2), b"note", SUMS, 2, 3
        ),
        residue_worker._Order(11, 13, 139, 3),
        *(TOLD.dealt[0], TOLD.agreed[0], StoredNote(bytes(32), b"", bytes(32))),
        dealt.deal(ROSTER, Esafl("rns-4096", "dealt"), random=source("dealt"))[IDS[0].public],
        StoredSession(bytes(16), Contract()),
        Contract(
            train=Settings(
                {"lr": Cosine(0.1, 0.01, 5), "epochs": (1, None, 2), "x": [True, False]}
            ),
            evaluate=Settings({"batch": Step(8, 0.5, 2), "name": "a", "raw": b"b"}),
            app="publisher/app 1.0.0 0123",
        ),
        Terms(Flashe(masking="adaptive"), update_codec(clip="exchange")),
        Terms(Sash(unmask="clients"), update_codec(bits=0)),
        Terms(BatchCrypt(), update_codec(clip="history")),
        Terms(Esafl(keys="round")),
        Terms(Esafl(keys="joint"), optimizer=Optimizer("adam")),
        Terms(FedmlHe(), update_codec(weighted=False), select=Select(0.1), noise=Laplace(0.01)),
        Terms(
            codec=update_codec(clip={"w": 0.5, "b": 0.25}, top_k=0.1, small=0),
            optimizer=Optimizer("fedadam"),
        ),
    ]


def _of_schemes() -> None:
    """Make the records of every scheme's own keys."""
    for kind in SCHEMES.all():
        scheme = kind()
        if scheme.agreement == "key-pair":
            adder: Any = scheme.adder(3)
            adder.check_pair(*adder.new_pair(source(scheme.name)))
        Terms(scheme, update_codec(bits=scheme.default_bits))


@functools.cache
def samples() -> dict[str, list[Record]]:
    """Honest records, by the name of their class."""
    made: dict[str, list[Record]] = {}
    original = Record.__post_init__

    def keep(self: Record) -> None:
        original(self)
        kept = made.setdefault(name_of(type(self)), [])
        if len(kept) < MOST and all(type(other) is type(self) for other in kept):
            kept.append(self)

    with mock.patch.object(Record, "__post_init__", keep):
        for record in _more():
            made.setdefault(name_of(type(record)), []).insert(0, record)
        for decoder in _others():
            take_honest(decoder)
        _of_schemes()
    return made


def _others() -> Iterator[Decoder]:
    for module in (signed, masked, sites, plain, stored, ciphertexts):
        yield from module.entries()


def name_of(cls: type[Record]) -> str:
    """As the registry has it."""
    return f"{cls.__module__}.{cls.__name__}"


def encoded(record: Record) -> bytes:
    """Its encoding, also where it lies within another one only."""
    return canonical.dumps(record.to_fields())


def all_records() -> list[str]:
    """Names of all classes of the library: they are known once their modules are imported."""
    return tuple(modules()) and sorted(name for name in RECORDS if name.startswith("flhe."))


def given(name: str) -> dict[str, Any]:
    """What the reader of a class's samples has."""
    return {field: getattr(samples()[name][0], field) for field in plan_of(RECORDS[name]).given}


def of_one_reader(name: str) -> list[Record]:
    """The samples that one reader takes."""
    known = given(name).items()
    return [
        one
        for one in samples()[name]
        if all(getattr(one, field) == value for field, value in known)
    ]


def _decoder(name: str) -> Decoder:
    """What is taken for a record is written again to the same bytes."""
    return Decoder(
        name,
        lambda: list(dict.fromkeys(map(encoded, of_one_reader(name)))),
        lambda data: RECORDS[name].from_bytes(data, **given(name)),
        encoded,
        room=64 << 20,
    )


@functools.cache
def all_decoders() -> dict[str, Decoder]:
    """By name: one for each class of records, and all others."""
    found = [*_others(), *map(_decoder, all_records())]
    by_name = {decoder.name: decoder for decoder in found}
    assert len(by_name) == len(found)
    return by_name


# --- what a declaration says must be refused ---


def refused(record: Record, random: Random) -> Iterator[tuple[str, bytes]]:
    """What is wrong with it, and the bytes."""
    honest = encoded(record)
    tree = canonical.loads(honest, 64 << 20, "honest")
    for what, wrong in (*_in_shape(record, tree), *_in_fields(record, tree)):
        yield what, canonical.dumps(wrong)
    for at in {random.randrange(len(honest)) for _ in range(40)} | {0, len(honest) - 1}:
        yield f"cut at {at}", honest[:at]
    yield "a byte more", honest + b"\0"
    for _ in range(20):
        sloppy = encode(tree, random)
        if sloppy != honest:
            yield "not canonical", sloppy


def _in_shape(record: Record, tree: Any) -> Iterator[tuple[str, Any]]:
    """A field too few or too many, another kind or version, no record at all."""
    form = record.FORM
    yield from (
        (f"{wrong!r} in its place", wrong) for wrong in WRONG if type(wrong) is not type(tree)
    )
    if form.row:
        yield "a value less", tree[:-1]
        yield "a value more", [*tree, 0]
    else:
        if not form.lean:
            yield from ((f"no {name}", _without(tree, name)) for name in tree)
        yield "a field more", {**tree, "zz": 0}
    for name, wrong in (
        *(("v", wrong) for wrong in (form.version + 1, form.version - 1, True, str(form.version))),
        *(("kind", wrong) for wrong in (form.kind + "x", "", form.kind.encode())),
    ):
        if name in form.head:
            yield f"{name} is {wrong!r}", _with(record, tree, name, wrong)


def _in_fields(record: Record, tree: Any) -> Iterator[tuple[str, Any]]:
    """A value of another type, or beyond a bound."""
    hints = hints_of(type(record), include_extras=True)
    for name, _ in plan_of(type(record)).specs:
        raw = _value(record, tree, name)
        for wrong in _wrong(hints[name], raw):
            yield (
                f"{name} is {type(wrong).__name__} {wrong!r:.40}",
                _with(record, tree, name, wrong),
            )


def _wrong(hint: Any, raw: Any) -> Iterator[Any]:
    """Values in the place of `raw` that its type does not have."""
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    base = get_args(hint)[0] if marks else hint
    if any(isinstance(mark, As | Given) for mark in marks):
        return
    if type(None) in get_args(base):
        if raw is not None:
            yield from (wrong for wrong in _wrong(get_args(base)[0], raw) if wrong is not None)
        return
    yield from (wrong for wrong in WRONG if type(wrong) is not type(raw))
    if get_origin(base) is Literal:
        yield raw + raw
    if get_origin(base) is tuple and raw:
        item = get_args(base)[0]
        yield from (
            [*raw[:-1], wrong]
            for wrong in _wrong(item if ... in get_args(base) else get_args(base)[-1], raw[-1])
        )
        if ... not in get_args(base):
            yield from (raw[:-1], [*raw, raw[-1]])
    for mark in marks:
        if isinstance(mark, Rule) and base is not float:
            yield from (each for each in _same_type(raw) if not mark.ok(each))


def _same_type(raw: Any) -> Iterator[Any]:
    """Other values of the same type, short, long and at all edges."""
    if type(raw) is int:
        yield from EDGES
    elif type(raw) is bytes:
        yield from (b"", raw[:-1], raw + b"\0", raw * 2)
    elif type(raw) is str:
        yield from ("", raw + "\0", raw * 70, raw + "é")
    elif type(raw) is list:
        yield from (raw[::-1], raw + raw[-1:], raw * 70_000 if len(raw) < 3 else raw * 500)


def _place(record: Record, name: str) -> Any:
    names = [*record.FORM.head, *(field for field, _ in plan_of(type(record)).specs)]
    return names.index(name) if record.FORM.row else name


def _value(record: Record, tree: Any, name: str) -> Any:
    return tree.get(name) if isinstance(tree, dict) else tree[_place(record, name)]


def _with(record: Record, tree: Any, name: str, value: Any) -> Any:
    changed = tree.copy()
    changed[_place(record, name)] = value
    return changed


def _without(tree: dict[str, Any], name: str) -> dict[str, Any]:
    return {other: value for other, value in tree.items() if other != name}
