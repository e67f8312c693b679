"""A decoder for each class of records.

Honest samples are all records that are made on the way of other decoders' honest messages, and a few
beside those. A class of records without any fails a test.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from flhe.coding.chain import chain
from flhe.coding.clip_norm import ClipNorm
from flhe.coding.discrete_gaussian import DiscreteGaussian
from flhe.coding.laplace import Laplace
from flhe.coding.select import Select
from flhe.coding.update import update_codec
from flhe.keys.agreement import dealt
from flhe.keys.roster.enrolment import Enrolment
from flhe.keys.roster.limits import Limits
from flhe.keys.roster.roster import Roster
from flhe.node.journal import Journal, Note, SignedSet
from flhe.node.ledger import Ledger
from flhe.node.node import StoredAgreement, StoredSession
from flhe.provision.federation import published
from flhe.provision.federation.card import Card
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.registry import SCHEMES
from flhe.schemes.sash.scheme import Sash
from flhe.strategies.ledger import PendingSet
from flhe.strategies.survey import Asked, Outcome
from flhe.training.contract import Contract
from flhe.training.optimizer import Optimizer
from flhe.training.query import AnswerForm, Part, Query
from flhe.training.schedule import Cosine, Settings, Step
from flhe.training.terms import Terms
from flhe.wire import canonical
from flhe.wire.record import Record
from tests.fuzz import ciphertexts, masked, plain, signed, stored
from tests.fuzz.decoders import NEVER, Decoder, modules, take_honest
from tests.fuzz.group import IDS, ROSTER, exchange, source
from tests.fuzz.masked import TOLD, VOID

MOST = 6
"""Samples of one class."""
SUMS = {"mean-squares": {3: bytes(32)}, "update": {1: bytes(32), 2: bytes(32)}}


def _more() -> list[Record]:
    """Honest records that no message holds, or not in all their ways."""
    e = exchange()
    form = AnswerForm((Part("counts", (2, 3)), Part("costs", (1,), 1e6, 2.0**-20)))
    asked = Asked(Query.of("age-histogram", {"bins": 10, "edges": [0.5, 1.0], "raw": b"b"}), form)
    return [
        *_exchanged(),
        *(e.advertised[0], e.shared[0], e.confirmed[0], e.epochs[0]),
        Roster.first_use(ROSTER.publics),
        Limits({"min-select": 0.25, "unpermuted": False, "min-members": 4}),
        Journal(bytes(16), bytes(16)),
        SignedSet(bytes(32), bytes(32), bytes(32), 3, True),
        *(VOID, VOID.promises[0], PendingSet(VOID, {0: b"signature"}, {1: b"answer"})),
        Journal(*[bytes(16)] * 3, bytes(32), bytes(16), (3, 1, 2), Note(bytes(32)), SUMS, 2, 3),
        *(TOLD.dealt[0], TOLD.agreed[0], Note(bytes(32), b"", bytes(32))),
        dealt.deal(ROSTER, Esafl("rns-4096", "dealt"), random=source("dealt"))[IDS[0].public],
        StoredSession(bytes(16), Contract()),
        StoredAgreement("Confirmed", Contract(), e.confirmed[0].to_bytes()),
        Ledger(bytes(16), bytes(16), ((0.5, 0.01, False, 3), (1.0, 1.0, True, 40))),
        Contract(
            train=Settings(
                {"lr": Cosine(0.1, 0.01, 5), "epochs": (1, None, 2), "x": [True, False]}
            ),
            evaluate=Settings({"batch": Step(8, 0.5, 2), "name": "a", "raw": b"b"}),
            app="publisher/app 1.0.0 0123",
        ),
        *(asked, asked.query, asked.form, *asked.form.parts),
        *(Outcome(asked, 3, bytes(32), sealed, bytes(24)) for sealed in (False, True)),
        Terms(Flashe(masking="adaptive"), update_codec(clip="exchange")),
        Terms(codec=chain(ClipNorm(1.0), DiscreteGaussian(1.0, 1.0)), metrics=(), evaluated=()),
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


def _exchanged() -> list[Record]:
    """Files between sites and coordinator; their keys and certificate are fixed."""
    point = ec.derive_private_key(7, ec.SECP384R1()).public_key()
    key = point.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    asked = Enrolment.make("site-a", IDS[0])
    authority = b"-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"
    said = ("cardio", 3, "fl.example.org:8000", authority, (IDS[1].public, IDS[2].public))
    return [
        Card.make(asked, key, IDS[0]),
        Card.make(Enrolment.make("site-b", IDS[1], IDS[2]), key, IDS[1]),
        published.make(*said, ROSTER, IDS[2]),
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
    for module in (signed, masked, plain, stored, ciphertexts):
        yield from module.entries()


def name_of(cls: type[Record]) -> str:
    """Module and name of a class."""
    return f"{cls.__module__}.{cls.__name__}"


def encoded(record: Record) -> bytes:
    """Its encoding, also where it lies within another one only."""
    return canonical.dumps(record.to_fields())


@functools.cache
def all_records() -> dict[str, type[Record]]:
    """All classes of the library, by name: they are known once their modules are imported."""

    def below(cls: type[Record]) -> Iterator[type[Record]]:
        for kind in cls.__subclasses__():
            yield from (kind, *below(kind))

    found = {
        name_of(kind): kind for kind in tuple(modules()) and below(Record) if "FORM" in vars(kind)
    }
    return {name: found[name] for name in sorted(found) if name.startswith("flhe.")}


def _decoder(name: str) -> Decoder:
    """What is taken for a record is written again to the same bytes; if it is signed, none is taken."""
    cls = all_records()[name]
    honest = functools.partial(map, encoded)
    return Decoder(
        name,
        lambda: list(dict.fromkeys(honest(samples()[name]))),
        cls.from_bytes,
        NEVER if cls in (Enrolment, Card, published.Published) else encoded,
        room=64 << 20,
    )


@functools.cache
def all_decoders() -> dict[str, Decoder]:
    """By name: one for each class of records, and all others."""
    found = [*_others(), *map(_decoder, all_records())]
    by_name = {decoder.name: decoder for decoder in found}
    assert len(by_name) == len(found)
    return by_name
