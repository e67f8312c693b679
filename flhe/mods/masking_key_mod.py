"""MaskingKeyMod: the client half of masking-key agreement, for a mask of the app's own.

    ClientApp(mods=[MaskingKeyMod()])

    @app.train()
    def train(message, context):
        seed = masking_key(message)            # uint64 (2048,), modulo Q: fresh in every round
        ...

The server's half is `flhe.strategies.MaskingKeyAgreement`, which learns the sum of the seeds of one
survivor set only. The mod takes part in consistency and release, and claims each round on disk. The
app decides what to mask, and how.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from flhe.errors import ConfigError, ProtocolError
from flhe.keys.agreement import masking
from flhe.keys.agreement.pairs import pack_elements, unpack_elements
from flhe.math.prg import random_elements
from flhe.mods import agreement, records, survivors
from flhe.mods.app import App
from flhe.mods.he_mod import STAGES, HEMod, Stages
from flhe.node.node import Node
from flhe.training.query import NOTHING
from flhe.training.session import Session

ASKED = ("advertise", "share", "confirm", "status", "consist", "unmask", "void")
"""Stages of `HEMod` for keys only."""
KEY = "flhe.masking-key"
"""Record with the app's seed."""


def masking_key(message: Message) -> NDArray[np.uint64]:
    """Return this node's seed for masks in this round: field elements modulo `flhe.math.ring.Q`.

    Raises ConfigError: the message has no seed.
    """
    record = records.find_config(message.content, KEY)
    if record is None:
        raise ConfigError("this message holds no masking key: put MaskingKeyMod() before the app")
    seed: bytes = records.field(record, "seed", bytes)
    return unpack_elements(seed, len(seed) // 8)


def hand_over(node: Node, record: ConfigRecord, message: Message, app: App) -> RecordDict:
    """Share a fresh seed among the members, and pass it to the app; its reply leaves unchanged.

    Raises ProtocolError: the round is not the next, or the reply contains the seed.
    """
    agreed, contract = agreement.current(node, record, app)
    scheme = contract.terms.scheme
    if not scheme.per_sum_keys or contract.asks:
        raise ProtocolError("this federation agrees on no masking keys for apps")
    number, reached = records.field(record, "round", int), node.journal(agreed.id).last_reached()
    contract.check_due(reached, number, reached)
    session = Session(agreed, contract.terms, NOTHING)
    slot = session.sums.masking_slot(number)
    seed = random_elements(scheme.elements(agreed.size), secrets.token_bytes)
    node.claim(session, slot, b"", "update")  # before the app masks with it
    node.save_dealt(masking.deal(agreed, slot, seed))
    told = pack_elements(seed)
    shown = {name: value for name, value in message.content.items() if name != records.STAGE}
    message.content = RecordDict({**shown, KEY: ConfigRecord({"seed": told})})
    content = app.pass_on(message)
    if any(told in value for value in _bytes_in(content)):
        raise ProtocolError("the app's reply must not contain its masking key")
    told_of = records.reply(step="masking-key", shares=survivors.shares(node, slot))
    return RecordDict({**content, **told_of})


def _bytes_in(content: RecordDict) -> Iterator[bytes]:
    """Yield all bytes that a reply would send."""
    for record in content.values():
        if isinstance(record, ArrayRecord):
            yield from (array.data for array in record.values())
        else:
            values = (
                v for one in record.values() for v in (one if isinstance(one, list) else [one])
            )
            yield from (value for value in values if isinstance(value, bytes))


class MaskingKeyMod(HEMod):
    """Agrees on masking keys, and gives the app each round's; keys and policy as for `HEMod`."""

    STAGES: ClassVar[Stages] = {
        **{("train", name): STAGES["train", name] for name in ASKED},
        ("train", "masking-key"): hand_over,
    }
