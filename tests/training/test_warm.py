"""Warming up: a round on zeros runs what a round runs, and leaves nothing behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from flhe.coding.update import update_codec
from flhe.schemes.base import Scheme
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.registry import SCHEMES
from flhe.training import warm
from flhe.training.terms import Terms


def terms_of(scheme: Scheme, **coding: Any) -> Terms:
    return Terms(scheme, update_codec(bits=scheme.default_bits, **coding))


@pytest.fixture(autouse=True)
def _cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "_warmed", set())


def started() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "flhe-warm"]


@pytest.mark.parametrize("name", ["flashe", "sash", "esafl"])
@pytest.mark.parametrize("bits", [0, 12])
def test_a_round_on_zeros(name: str, bits: int) -> None:
    scheme = SCHEMES.named(name)()
    assert scheme.agreement in warm.ALONE
    chosen = {"bits": bits} if bits else {}
    warm.rehearse(Terms(scheme, update_codec(**{"bits": scheme.default_bits, **chosen})), 5)


def test_a_process_warms_up_once_and_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, done = threading.Event(), []
    monkeypatch.setattr(warm, "rehearse", lambda *_: (gate.wait(30), done.append(1)))
    terms = terms_of(SCHEMES.named("flashe")())
    for _ in range(3):
        warm.warm(terms, 5)
    (thread,) = started()
    assert not thread.daemon
    gate.set()
    thread.join()
    assert done == [1]


@pytest.mark.parametrize(
    "terms", [terms_of(FedmlHe()), terms_of(SCHEMES.named("flashe")(), top_k=0.1)]
)
def test_terms_that_take_more_than_zeros(terms: Terms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "rehearse", pytest.fail)
    warm.warm(terms, 5)
    assert started() == []


def test_a_failure_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("no room for the cache")

    monkeypatch.setattr(warm, "rehearse", fails)
    warm.warm(terms_of(SCHEMES.named("sash")()), 5)
    for thread in started():
        thread.join()
