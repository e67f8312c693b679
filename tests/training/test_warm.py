"""Warming up: a round on zeros runs what a round runs, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
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
    codec = update_codec(bits=bits or scheme.default_bits)
    warm.rehearse(Terms(scheme, codec), 5)


def test_a_process_warms_up_once_and_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    done: list[bool] = []

    def waits(*_: object) -> None:
        done.append(gate.wait(30))

    monkeypatch.setattr(warm, "rehearse", waits)
    terms = terms_of(SCHEMES.named("flashe")())
    for _ in range(3):
        warm.warm(terms, 5)
    (thread,) = started()
    assert not thread.daemon
    gate.set()
    thread.join()
    assert done == [True]


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


def test_an_installation_that_has_run_a_round_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[int] = []
    monkeypatch.setattr(warm, "rehearse", lambda *_: runs.append(1))
    for has_run in (True, False):
        monkeypatch.setattr(warm, "_warmed", set())
        monkeypatch.setattr(warm, "_has_run", lambda has_run=has_run: has_run)
        warm.warm(terms_of(SCHEMES.named("flashe")()), 5, if_new=True)
        for thread in started():
            thread.join()
    assert runs == [1]


def test_the_last_loop_of_a_round_is_found_on_disk() -> None:
    warm.rehearse(terms_of(SCHEMES.named("flashe")()), 5)
    code = "from flhe.training.warm import _has_run; assert _has_run()"
    subprocess.run([sys.executable, "-c", code], check=True)
