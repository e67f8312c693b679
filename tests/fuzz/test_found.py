"""What fuzzing has found, in its smallest form."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from flhe.errors import FlheError, ProtocolError
from flhe.keys.agreement.states import Advertised, Confirmed, Epoch
from flhe.training.draft import MAGIC, Draft
from flhe.wire.canonical import dumps, loads
from tests.fuzz.decoders import Decoder
from tests.fuzz.group import IDS, exchange
from tests.fuzz.registry import all_decoders
from tests.fuzz.signed import pair


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def changed(data: bytes, **fields: Any) -> bytes:
    return dumps({**loads(data, 1 << 20, "test"), **fields})


@pytest.mark.parametrize("version", [1, True])
def test_a_damaged_version_does_not_cost_a_state_its_keys(version: int) -> None:
    """It was read as of the version before schemes had keys, which were dropped."""
    state = pair()[0]
    assert state.scheme_secret
    with pytest.raises(ProtocolError):
        Confirmed.from_bytes(changed(state.to_bytes(), v=version), identity=IDS[0])
    with pytest.raises(ProtocolError):
        Epoch.from_bytes(changed(exchange().epochs[0].to_bytes(), v=version))
    with pytest.raises(ProtocolError):
        Advertised.from_bytes(
            changed(exchange().advertised[0].to_bytes(), v=version), identity=IDS[0]
        )


def test_a_dense_draft_has_no_residual() -> None:
    """It was taken, and the residual forgotten."""
    fields = {"v": 2, "round": 3, "history": bytes(32), "extras": [], "length": 1, "count": 1}
    head = dumps({**fields, "sparse": False, "base": b"", "told": bytes(32)})
    with pytest.raises(FlheError):
        Draft.from_bytes(MAGIC + len(head).to_bytes(4, "big") + head + bytes(8))


def _more(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "x": 0}


LEDGERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "an unknown field": _more,
    "a sum of no round": lambda body: {**body, "sums": ["../../secret"]},
    "a sum twice": lambda body: {**body, "sums": [3, 3]},
    "True for a number": lambda body: {**body, "attempt": False},
    "a round twice": lambda body: {**body, "chain": body["chain"] * 2},
    "a member without a key": lambda body: {
        **body,
        "agreed": [*body["agreed"][:3], [1], [], 1, 3, b""],
    },
    "ranges twice": lambda body: {**body, "ranges": body["ranges"] * 2},
}


@pytest.mark.parametrize("name", list(LEDGERS))
def test_a_damaged_ledger(name: str) -> None:
    decoder = all_decoders()["ledger"]
    body = loads(decoder.honest[0], 1 << 20, "ledger")
    refused(decoder, dumps(LEDGERS[name](body)))


@pytest.mark.parametrize("sizes", [[3, []], [3, -1, 5], [3, "4"], [3, 5], [3]])
def test_a_kept_checkpoint_of_other_sizes(sizes: list[Any]) -> None:
    """Sizes that are no numbers ended the server with a TypeError; others cut the box wrongly."""
    decoder = all_decoders()["kept checkpoint of a ledger"]
    data = decoder.honest[0]
    head = dumps([2, sizes])
    old = 4 + int.from_bytes(data[:4], "big")
    refused(decoder, len(head).to_bytes(4, "big") + head + data[old:])


def test_a_session_with_more_in_it() -> None:
    decoder = all_decoders()["session"]
    refused(decoder, dumps(_more(loads(decoder.honest[0], 1 << 20, "session"))))


def refused(decoder: Decoder, data: bytes) -> None:
    decoder.decode(decoder.honest[0])
    with pytest.raises(FlheError):
        decoder.decode(data)
