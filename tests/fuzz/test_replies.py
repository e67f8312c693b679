"""Replies as the strategy sees them, one node's changed in any way: the run ends as it should.

it comes to its end, or an error of ours says that too few are left: nothing else comes out
a node whose reply is refused is named in the server's log
members who are up to date have one model, whatever the one node said
no text of a node's own gets into the log or the error: it could be anything
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from flwr.app import Error, Message, RecordDict

from flhe.errors import FlheError
from flhe.training.model import Model
from tests.fuzz.decoders import in_time
from tests.fuzz.messages import mutated
from tests.fuzz.recorded import CASES, ageless, federation
from tests.fuzz.test_stages import STAGES, stages
from tests.mods.harness import SECRET
from tests.strategies.puppets import Log, Puppets, initial


def run(path: Path, case_name: str, stage: str, seed: int) -> tuple[str, str, Puppets]:
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


MANY = [
    pytest.param(stage, 100, marks=[pytest.mark.sweep, pytest.mark.timeout(7200)])
    for stage in STAGES
]


@pytest.mark.parametrize(("stage", "count"), [("unmask", 2), *MANY])
def test_mutants(tmp_path: Path, stage: str, count: int, caplog: Log) -> None:
    for name in ("flwr", "flhe"):
        logging.getLogger(name).propagate = True
    caplog.set_level(logging.INFO)
    with ageless():
        having = ["sash-clients"] if count == 2 else stages()[stage]
        for seed in range(count):
            caplog.clear()
            case = having[seed % len(having)]
            ending, what, grid = run(tmp_path / f"{seed}", case, stage, seed)
            one_model(grid)
            assert SECRET not in caplog.text, (case, seed)
            assert "Traceback" not in caplog.text, (case, seed)
            assert ending == "finished" or not what or "node" in caplog.text, (case, seed)
