"""Machines that start anew, and nodes of another version: named, and the federation goes on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

from flhe.errors import QuorumError
from flhe.mods import he_mod, records
from flhe.node.policy import Policy
from flhe.node.store import Store
from flhe.strategies import esafl_fedavg, flashe_fedavg, sash_fedavg
from flhe.strategies.report import RoundReport
from tests.strategies.puppets import Puppets, initial
from tests.strategies.test_he_strategy import MAX, run, same

pytestmark = pytest.mark.usefixtures("quick")

NODES = 4


@pytest.mark.parametrize(
    ("who", "durable", "agreements", "senders"),
    [
        ([1], False, 2, NODES - 1),  # its keys are found out about when it is asked for an update
        (range(NODES), False, 2, NODES),
        (range(NODES), True, 1, NODES),
    ],
    ids=["one", "all", "all, durable"],
)
def test_machines_that_start_anew_agree_anew(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    who: Any,
    durable: bool,
    agreements: int,
    senders: int,
) -> None:
    """Their disks may be those of yesterday: no mask of the keys on them is used again."""
    grid = Puppets(tmp_path, NODES, config=lambda _: {"flhe-durable": durable})
    starts: Counter[Path] = Counter()
    reports: list[RoundReport] = []

    def opened(policy: Policy) -> Store:
        boot = f"start {starts[policy.home]}"
        return Store(policy.home, boot="" if policy.durable else boot)

    def after(report: RoundReport) -> None:
        reports.append(report)
        if report.round == 2:
            starts.update(grid.homes[i] for i in who)

    monkeypatch.setattr(he_mod, "open_store", opened)
    strategy = flashe_fedavg(max_examples=MAX, on_round=after)
    strategy.start(grid, initial(), num_rounds=4)
    grid.close()
    assert grid.stages("advertise") == agreements * [100 + i for i in range(NODES)]
    assert [r.survivors for r in reports] == [NODES, NODES, senders, NODES]
    assert same(grid, range(NODES)).round == 4
    epochs = {p.name for p in (grid.homes[1] / "used").iterdir()}
    assert len(epochs) == agreements


def test_a_node_of_another_version_is_named_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Puppets(tmp_path, NODES)

    def rewrite(node: int, stage: str, content: RecordDict) -> RecordDict:
        record = content[records.STAGE]
        if node != 103 or not isinstance(record, ConfigRecord):
            return content
        return RecordDict(
            {**content, records.STAGE: ConfigRecord({**record, "v": records.PROTOCOL - 1})}
        )

    grid.rewrite = rewrite
    done = run(grid, 2)
    assert [r.survivors for r in done.reports] == [NODES - 1] * 2
    assert "node 103 is left out: flhe/version: it runs another version of flhe" in caplog.text
    assert not (grid.homes[3] / "runs").exists()
    assert same(grid, range(NODES - 1)).round == 2


@pytest.mark.parametrize("make", [flashe_fedavg, esafl_fedavg])
def test_a_sum_whose_key_is_gone_everywhere_is_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, make: Any
) -> None:
    """Power fails everywhere between a sum and its opening: that round is lost, and no more."""
    grid = Puppets(tmp_path, NODES)
    starts = [0]
    monkeypatch.setattr(he_mod, "open_store", lambda policy: Store(policy.home, boot=f"{starts}"))

    def after(report: RoundReport) -> None:
        if report.round == 2:
            starts[0] += 1

    strategy = make(max_examples=MAX, on_round=after, fraction_evaluate=0.0)
    strategy.start(grid, initial(), num_rounds=4)
    grid.close()
    assert "nobody has opened the sum of round 2, and its key is gone: it is void" in caplog.text
    assert same(grid, range(NODES)).round == 4


@pytest.mark.parametrize(
    ("make", "how"), [(flashe_fedavg, {}), (sash_fedavg, {"unmask": "clients"})]
)
def test_one_message_about_a_round_ahead_costs_rounds_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Any, how: dict[str, Any]
) -> None:
    """A server that was dishonest once: the rounds that it used up are passed over."""
    grid, hit = Puppets(tmp_path, NODES), set[int]()
    far = 4

    def rewrite(node: int, stage: str, content: RecordDict) -> RecordDict:
        record = content[records.STAGE]
        assert isinstance(record, ConfigRecord)
        if stage != "round" or record["round"] != 2 or node in hit:
            return content
        hit.add(node)
        changed = ConfigRecord({**record, "round": far, "attempt": 2**32 - 1})
        return RecordDict({**content, records.STAGE: changed})

    grid.rewrite = rewrite
    strategy = make(max_examples=MAX, **how)
    strategy.start(grid, initial(), num_rounds=7)
    grid.close()
    assert len(hit) == NODES
    assert same(grid, range(NODES)).round == 7


def test_power_fails_at_the_server_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a sum and its opening, everywhere: the run that resumes takes that round back."""
    grid, state = Puppets(tmp_path, NODES), tmp_path / "state"
    starts = [0]
    monkeypatch.setattr(he_mod, "open_store", lambda policy: Store(policy.home, boot=f"{starts}"))

    class PowerCutError(Exception):
        pass

    def after(report: RoundReport) -> None:
        if report.round == 2:
            starts[0] += 1
            raise PowerCutError

    how: dict[str, Any] = {"max_examples": MAX, "fraction_evaluate": 0.0, "state_dir": state}
    with pytest.raises(PowerCutError):
        flashe_fedavg(**how, on_round=after).start(grid, initial(), num_rounds=4)
    flashe_fedavg(**how).start(grid, initial(), num_rounds=4, resume=True)
    grid.close()
    assert same(grid, range(NODES)).round == 4


def test_a_round_gets_one_attempt_more_and_not_another(tmp_path: Path) -> None:
    """Most nodes have answered its attempts before, and then fail for ever."""
    grid = Puppets(tmp_path, NODES)
    asked = Counter[int]()

    def forge(node: int, stage: str, reply: Message) -> Message:
        if stage != "round":
            return reply
        asked[node] += 1
        code = 1022 if asked[node] <= 2 else 1001
        return Message(Error(code=code, reason="test"), reply_to=_request(reply))

    def _request(reply: Message) -> Message:
        return Message(RecordDict(), reply.metadata.src_node_id, "train")

    grid.forge = forge
    with pytest.raises(QuorumError):
        flashe_fedavg(max_examples=MAX, retries=1).start(grid, initial(), num_rounds=1)
    grid.close()
    assert max(asked.values()) <= 3
