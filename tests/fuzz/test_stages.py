"""Every stage as a node sees it, from a server that changes anything in an honest message.

    no exception leaves the mod
    what is refused is refused by a code of the table, never as a surprise, and the node goes on: the
    honest message is answered then
    what is answered leaves the model, the epochs and the terms on the disk as they were, or as the
    honest message would have left them; no key is in the answer

A server that chooses a round's number, or what an app is told, is not one that lies: all of it is bound
into masks and signatures. A first model that a server sends in clear is the server's to choose.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from flwr.app import Message, RecordDict

from flhe.mods.he_mod import STAGES as TABLE
from flhe.node.journal import Journal
from flhe.training.contract import Contract
from flhe.training.model import Model
from flhe.wire import canonical
from tests.fuzz.decoders import in_time
from tests.fuzz.messages import mutated
from tests.fuzz.recorded import CASES, Disk, Moment, ageless, moments, taken
from tests.mods.harness import SLUGS, wire

FEW, MANY = 2, 10_000
"""Mutants of a stage: so many for each federation that has it, at least."""
INTERNAL, APP_FAILED = 1002, "1001"
CLAIMED, REUSED = "1022", "1012"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    try:
        with ageless():
            yield
    finally:
        logging.disable(logging.NOTSET)


@functools.cache
def stages() -> dict[str, list[str]]:
    """Stage -> federations that have it."""
    having = {case: {moment.stage for moment in moments(case)} for case in CASES}
    return {s: found for s in STAGES if (found := [case for case in CASES if s in having[case]])}


STAGES = sorted({name for _, name in TABLE})


def test_every_stage_is_here() -> None:
    assert set(STAGES) == set(stages())


@pytest.mark.parametrize(
    "count", [FEW, pytest.param(MANY, marks=(pytest.mark.sweep, pytest.mark.timeout(7200)))]
)
@pytest.mark.parametrize("stage", STAGES)
def test_mutants(stage: str, count: int) -> None:
    print(f"{stage}: {dict(fuzz(stage, max(count, FEW * len(stages()[stage])), count))}")


def fuzz(stage: str, count: int, seed: int) -> Counter[str]:
    """Try mutants of a stage, in turn for each federation that has it; how they were answered."""
    random, outcomes = Random(f"{stage} {seed}"), Counter[str]()
    by_case = [[m for m in moments(case) if m.stage == stage] for case in stages()[stage]]
    for number in range(count):
        here = by_case[number % len(by_case)]
        moment = random.choice(here)
        others = [m.content for m in moments(moment.case)]
        content, what = mutated(moment.content, others, random)
        kind = random.choice(("train", "evaluate")) if random.random() < 0.02 else ""
        try:
            outcomes[try_one(moment, content, kind)] += 1
        except BaseException as error:
            error.add_note(f"{moment.name}, seed {seed}, mutant {number}: {what}")
            raise
    return outcomes


def try_one(moment: Moment, content: RecordDict, kind: str = "") -> str:
    """Hold a node to the laws; how it answered."""
    moment.restore()
    with in_time():
        reply = moment.send(content, kind)
    outcome = judged(moment, reply)
    check_disk(moment, taken(moment.home))
    now = taken(moment.home)
    with in_time():
        again = moment.send()
    second = judged(moment, again)
    if outcome not in ("answered", APP_FAILED):
        assert second in ("answered", *spent(moment, now)), f"{outcome}, then {second}"
    return outcome


def spent(moment: Moment, now: Disk) -> set[str]:
    """What may stand in the way of the honest message: a claim or an opening that is on disk for ever.

    They are written before anything is encrypted or decrypted, so also for what is then refused.
    """
    new = [
        (_journal(moment.before.get(name)), _journal(content))
        for name, content in now.items()
        if name.endswith("/journal")
    ]
    claimed = any(before.mark != after.mark for before, after in new)
    opened = any(before.opened != after.opened for before, after in new)
    return {code for code, is_so in ((CLAIMED, claimed), (REUSED, opened)) if is_so}


def _journal(content: bytes | None) -> Journal:
    return Journal.from_bytes(content) if content else Journal(bytes(16), bytes(16))


def judged(moment: Moment, reply: Message) -> str:
    """How a reply answers; an error holds nothing but a code of the table and its slug."""
    if reply.has_error():
        code = reply.error.code
        assert reply.error.reason == SLUGS[code]
        assert code != INTERNAL, (moment.home / "errors.log").read_text()[-1500:]
        return str(code)
    said = wire(reply)
    assert not any(secret in said for secret in moment.secrets())
    return "answered"


@functools.cache
def known(case: str) -> dict[str, set[bytes]]:
    """What nodes' files held at any time of an honest exchange; models and epochs are the same."""
    out: dict[str, set[bytes]] = {}
    for disk in (disk for m in moments(case) for disk in (m.before, m.after)):
        for name, content in disk.items():
            if content is not None:
                out.setdefault(name, set()).add(content)
    return out


def check_disk(moment: Moment, now: Disk) -> None:
    """Model, epochs and session are those that a node has at some time of an honest exchange."""
    honest = known(moment.case)
    for name, content in now.items():
        if content is None or content in honest.get(name, ()):
            continue
        if name.endswith("/session"):
            assert name not in moment.before, "the epoch or terms under way changed"
            assert f"epochs/{_session(content)['epoch'].hex()}" in honest
        elif name.startswith("epochs/"):
            assert name in honest, "an epoch that was never agreed on"
        elif name.endswith("/model"):
            assert may_be(moment, Model.from_bytes(content)), "another model than any honest one"


def _session(content: bytes) -> dict[str, Any]:
    found: dict[str, Any] = canonical.loads(content, 1 << 20, "session")
    return found


def may_be(moment: Moment, model: Model) -> bool:
    """Whether a model that is no honest one is the server's to choose, or one that nobody can tell.

    The first model, where the server sends it, or where the node itself makes it. And where a scheme
    has no tags, the sum of a round, whose hash is in the history: those who opened another one do not
    add up with this node any more.
    """
    if model.round == 0:
        sent = model.history == Model.initial(model.arrays()).history
        return sent or moment.stage == "initial"
    return not _tagged(moment)


def _tagged(moment: Moment) -> bool:
    for name, content in (*moment.before.items(), *moment.after.items()):
        if name.endswith("/session") and content is not None:
            return Contract.from_bytes(_session(content)["contract"]).terms.tagged
    return False
