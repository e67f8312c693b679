"""Guards of keys and rosters that others stand in for: each refuses by its own words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flhe.errors import ConfigError, FlheError, ProtocolError, QuorumError
from flhe.keys.agreement import epoch
from flhe.keys.agreement.dealt import Dealt
from flhe.keys.agreement.messages import Envelope
from flhe.keys.agreement.model_key import ModelKey
from flhe.keys.agreement.pairs import check_order
from flhe.keys.identity import Identity
from flhe.keys.roster import fingerprint as phone
from flhe.keys.roster.roster import MAX_MEMBERS, Member, Roster
from flhe.keys.roster.signed_roster import SignedRoster
from flhe.node.store import Store
from flhe.schemes.esafl.keys import EsheKey
from flhe.sums import receipts
from flhe.wire import canonical
from flhe.wire.derive import hkdf

SITES = sorted((Identity(bytes([i]) * 32) for i in range(6)), key=lambda one: one.public)
KEYS = tuple(one.public for one in SITES)
ROSTER = Roster(tuple(Member(f"site-{i}", key) for i, key in enumerate(KEYS[:5])), 1, 2, ("eshe",))
SIGNED = SignedRoster(ROSTER).signed(SITES[0])
STATE, HELLO = epoch.advertise(SITES[0], 7, 1, ROSTER)
ENVELOPE = Envelope.from_bytes(HELLO, 4096)


def dealt(**change: object) -> Dealt:
    key = EsheKey(np.zeros(4096, np.int8), np.zeros(4096, np.int16))
    good = {"ring": "goldilocks-4096", "roster_hash": bytes(32), "serial": bytes(16)}
    return Dealt(**{**good, "members": KEYS, "member": KEYS[0], "key": key, **change})  # type: ignore[arg-type]


REFUSED: dict[str, tuple[Callable[[], object], type[FlheError], str]] = {
    "hkdf of nothing": (lambda: hkdf(b"", "label"), ConfigError, "the secret is empty"),
    "a field too many": (
        lambda: canonical.record({"v": 1, "w": 2}, "x", {"v": int}),
        ProtocolError,
        "1 unknown fields",
    ),
    "no map": (lambda: canonical.record([1], "x", {}), ProtocolError, "got list, needs a map"),
    "a float": (
        lambda: canonical.loads(b"\xfb" + bytes(8), 99, "x"),
        ProtocolError,
        "not accepted",
    ),
    "a length of no length": (
        lambda: canonical.loads(b"\x5f\xff", 99, "x"),
        ProtocolError,
        "indefinite or reserved",
    ),
    "a roster without schemes": (lambda: replace(ROSTER, schemes=()), ConfigError, "scheme once"),
    "a scheme twice": (
        lambda: replace(ROSTER, schemes=("eshe", "eshe")),
        ConfigError,
        "scheme once",
    ),
    "schemes that are no text": (
        lambda: Roster.from_bytes(
            canonical.dumps(canonical.loads(ROSTER.to_bytes(), 9999, "roster") | {"schemes": [1]})
        ),
        ProtocolError,
        "field schemes must be a list",
    ),
    "a removed stranger": (lambda: ROSTER.removed(KEYS[5]), ConfigError, "is no member's"),
    "many revoked keys": (
        lambda: replace(
            ROSTER, revoked=tuple(i.to_bytes(32, "big") for i in range(MAX_MEMBERS + 1))
        ),
        ConfigError,
        "1025 revoked keys",
    ),
    "few members": (lambda: Roster.first_use(KEYS[:2]), QuorumError, "3 are needed: start more"),
    "two rosters": (
        lambda: SIGNED.merged(SignedRoster(replace(ROSTER, collusion=0))),
        ConfigError,
        "these are two rosters",
    ),
    "signed twice": (
        lambda: SignedRoster(ROSTER, SIGNED.signatures * 2),
        ProtocolError,
        "has signed twice",
    ),
    "many hellos": (
        lambda: epoch.share(STATE, [HELLO] * (MAX_MEMBERS + 1)),
        ProtocolError,
        "1025 ADVERTISE messages",
    ),
    "a hello twice": (
        lambda: epoch.share(STATE, [HELLO, HELLO]),
        ProtocolError,
        "two ADVERTISE messages by",
    ),
    "a short signature": (
        lambda: replace(ENVELOPE, signature=bytes(63)),
        ProtocolError,
        "signature must be 64 bytes",
    ),
    "a low order": (lambda: check_order(bytes(32)), ProtocolError, "of low order"),
    "an odd word": (lambda: phone.to_words(b"abc"), ConfigError, "an odd number"),
    "a short history": (
        lambda: receipts.Receipt(bytes(31), 0, bytes(64)),
        ProtocolError,
        "history must be 32 bytes",
    ),
    "a late round": (
        lambda: receipts.Receipt(bytes(32), 1 << 32, bytes(64)),
        ProtocolError,
        "32-bit",
    ),
    "a short model key": (
        lambda: ModelKey(bytes(16), 1, bytes(32), bytes(31)),
        ProtocolError,
        "key must be 32 bytes",
    ),
    "dealt to a stranger": (
        lambda: dealt(members=KEYS[1:]),
        ProtocolError,
        "not among the members",
    ),
    "dealt in no order": (lambda: dealt(members=KEYS[::-1]), ProtocolError, "members that ascend"),
    "dealt under no serial": (lambda: dealt(serial=b""), ProtocolError, "serial must be 16 bytes"),
    "dealt for no roster": (
        lambda: dealt(roster_hash=b""),
        ProtocolError,
        "roster_hash must be 32 bytes",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_its_own_words(name: str) -> None:
    do, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        do()


def test_an_epoch_id_is_16_bytes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="an epoch id is 16 bytes"):
        Store(tmp_path).claim(bytes(15), 1, 0)
