"""Every stage, from a server that changes anything in an honest message; replies, from such a node.

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
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from flwr.app import Error, Message, RecordDict

from flhe.errors import FlheError
from flhe.mods.he_mod import STAGES as TABLE
from flhe.node.journal import Journal
from flhe.training.contract import Contract
from flhe.training.model import Model
from flhe.wire import canonical
from tests.fuzz.decoders import in_time
from tests.fuzz.messages import mutated
from tests.fuzz.recorded import CASES, Disk, Moment, ageless, federation, moments, secrets, taken
from tests.mods.harness import SECRET, SLUGS, wire
from tests.strategies.puppets import Log, Puppets, initial

FEW, MANY = 2, 10_000
"""Mutants of a stage: so many for each federation that has it, at least."""
SWEEP = (pytest.mark.sweep, pytest.mark.timeout(7200))
INTERNAL, APP_FAILED = 1002, "1001"
CLAIMED, REUSED = "1022", "1012"


@pytest.fixture
def quiet() -> Iterator[None]:
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


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=SWEEP)])
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
            error.add_note(f"{moment.case}/{stage}, seed {seed}, mutant {number}: {what}")
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
    assert not any(secret in said for secret in secrets(moment.case))
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


# --- replies, as the strategy sees them ---


def federate(path: Path, case_name: str, stage: str, seed: int) -> tuple[str, str, Puppets]:
    """A federation in which a node's replies at a stage are mutants; its end, and what they were."""
    case, random = CASES[case_name], Random(f"{case_name} {stage} {seed}")
    case = replace(case, nodes=max(case.nodes, 4), away="", rounds=2)
    grid, _ = federation(case, path)
    liar, told, seen = 100 + random.randrange(case.nodes), [""], list[RecordDict]()
    times = random.choice((1, 1, 99))

    def forge(node: int, name: str, reply: Message) -> Message:
        nonlocal times
        if reply.has_error():
            return reply
        seen.append(reply.content)
        if node == liar and name == stage and times > 0:
            times -= 1
            if seed % 20 == 1:
                code = random.choice((0, 1, 3, 1001, 1014, 1999, -1))
                error = Error(code, random.choice((SECRET, "flhe/left")))
                reply._content, reply._error, told[0] = None, error, "an error"
            else:
                reply.content, told[0] = mutated(reply.content, seen, random)
        return reply

    grid.forge = forge
    strategy = case.strategy(**{"max_examples": 64, "retries": 1, **case.how})
    try:
        with in_time(120):
            strategy.start(grid, initial() if case.served else None, num_rounds=case.rounds)
        ending = "finished"
    except FlheError as error:
        ending = type(error).__name__
        if SECRET in str(error):
            raise AssertionError("a node's own text is in the error") from None
    finally:
        grid.close()
    return ending, told[0], grid


def one_model(grid: Puppets) -> None:
    """Members that are at the last round agree on its model, where members have one."""
    paths = [grid.run_dir(index) / "model" for index in range(len(grid.homes))]
    found = [Model.from_bytes(path.read_bytes()) for path in paths if path.exists()]
    last = max((model.round for model in found), default=0)
    assert len({model.fingerprint() for model in found if model.round == last}) < 2


@pytest.mark.parametrize(
    ("stage", "count"),
    [("unmask", 2), *(pytest.param(stage, 100, marks=SWEEP) for stage in STAGES)],
)
def test_mutants_of_replies(tmp_path: Path, stage: str, count: int, caplog: Log) -> None:
    """The run ends as it should, whatever one node says.

    It comes to its end, or an error of ours says that too few are left: nothing else comes out. A node
    whose reply is refused is named in the server's log. Members that are up to date have one model. No
    text of a node's own gets into the log or the error: it could be anything.
    """
    for name in ("flwr", "flhe"):
        logging.getLogger(name).propagate = True
    caplog.set_level(logging.INFO)
    with ageless():
        having = ["sash-clients"] if count == 2 else stages()[stage]
        for seed in range(count):
            caplog.clear()
            case = having[seed % len(having)]
            ending, what, grid = federate(tmp_path / f"{seed}", case, stage, seed)
            one_model(grid)
            assert SECRET not in caplog.text, (case, seed)
            assert "Traceback" not in caplog.text, (case, seed)
            assert ending == "finished" or not what or "node" in caplog.text, (case, seed)
