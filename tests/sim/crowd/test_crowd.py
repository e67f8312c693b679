"""Clients on Ray: what is noted of them, how it grows, what is kept; the engine itself by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from flhe.errors import FlheError
from flhe.mods import records
from flhe.testing import InProcessGrid
from flhe_lab.bench.synthetic import STEP
from flhe_lab.crowd import app as crowd_app
from flhe_lab.crowd import command
from flhe_lab.crowd import run as running
from flhe_lab.crowd.found import Asked, Found
from flhe_lab.crowd.phases import PhaseGrid, Window
from flhe_lab.crowd.report import FURTHER, MEMORY, QUANTITIES, growth, together
from flhe_lab.crowd.run import RayRun
from tests.provision.site import run as flhe

CROWDS = Path(__file__).parents[3] / "docs" / "crowds.json"
WHOLE = "all processes"


@pytest.fixture(autouse=True)
def _identity() -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1


def found(clients: int) -> Found:
    """A run that grows as theory says."""
    n = clients
    phase = {"server_s": 0.001 * n * n, "grid_s": 0.002 * n}
    phase |= {"up_bytes_total": 100 * n * n, "down_bytes_total": 300 * n * n}
    rounds = (("advertise", 0), ("round", 1), ("round", 2))
    return Found(
        Asked(n, 1000, 2),
        rounds_s=[float(n), float(n)],
        client_cpu_s={"advertise": 0.01 * n, "round": 0.02 * n},
        phases=[{"name": name, "round": number, **phase} for name, number in rounds],
        server_bytes=10**8 + 1000 * n * n,
        actor_bytes=10**8,
        tree_bytes=10**9 + 1000 * n * n,
    )


# --- growth ---


def test_a_law_is_what_theory_says_and_not_what_fits() -> None:
    clients = [10, 100, 1000]
    square = [float(n) ** 2 for n in clients]
    assert growth(clients, square, (0, 1)).residual > 0.5
    falling = growth(clients, [100.0, 50.0, 10.0], (0, 1))
    assert (falling.name, falling.factors[1]) == ("constant", 0.0)
    parts = [growth(clients, [5.0] * 3, (0, 1)), growth(clients, square, (2,))]
    whole = together(parts, clients, [5.0 + n**2 for n in clients])
    assert (whole.powers, whole.name, whole.points) == ((0, 1, 2), "quadratic", 3)
    assert whole.at(10_000) == pytest.approx(5 + 10_000**2)
    assert whole.residual < 1e-6


# --- grids ---


class Echo:
    """A node that answers with an upload of 40 bytes."""

    def __call__(self, message: Message, _context: Any) -> Message:
        upload = ArrayRecord({"a": Array("uint8", (40,), "raw", bytes(40))})
        reply = {records.UPDATE: upload, records.REPLY: ConfigRecord({"x": b"12345"})}
        return Message(RecordDict(reply), reply_to=message)


def asked_for(stage: str, round_: int, node: int) -> Message:
    record = records.stage_record(stage, round=round_)
    beside = ConfigRecord({"boxes": b"1234567"})
    return Message(RecordDict({records.STAGE: record, "beside": beside}), node, "train")


def pull_all(grid: Any, ids: list[str]) -> list[Message]:
    replies: list[Message] = []
    while len(replies) < len(ids):
        for one in ids:
            replies += grid.pull_messages([one])
    return replies


def test_phases_are_noted_as_they_come() -> None:
    stages = [("advertise", 0), ("round", 1), ("consist", 1), ("round", 2)]
    with InProcessGrid(Echo(), 3) as inside:  # type: ignore[arg-type]
        grid = PhaseGrid(inside)
        for stage in stages:
            messages = [asked_for(*stage, 100 + n) for n in range(3)]
            pull_all(grid, grid.push_messages(messages))
        grid.end()
    assert [(p.name, p.round) for p in grid.phases] == stages
    assert {phase.up_bytes_total for phase in grid.phases} == {3 * 45}
    assert all(phase.down_bytes_total > 3 * 7 for phase in grid.phases)
    assert all(phase.server_s > 0 for phase in grid.phases)


class Engine:
    """A grid that answers when it is told to; it has no more than `most` messages at a time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held: dict[str, Message] = {}
        self.order: list[int] = []

    def push_messages(self, messages: list[Message]) -> list[str]:
        (message,) = messages
        if message.metadata.dst_node_id == 13:
            return []
        self.order.append(message.metadata.dst_node_id)
        name = f"engine-{len(self.order)}"
        message.metadata.__dict__["_message_id"] = name
        self.held[name] = message
        assert len(self.held) <= self.most
        return [name]

    def pull_messages(self, ids: list[str]) -> list[Message]:
        return [Message(RecordDict(), reply_to=self.held.pop(i)) for i in ids if i in self.held]


def test_the_engine_has_a_few_messages_at_a_time() -> None:
    engine = Engine(4)
    grid = Window(engine, 4)  # type: ignore[arg-type]
    ids = grid.push_messages([asked_for("round", 1, 100 + i) for i in range(11)])
    assert len(set(ids)) == 11
    assert len(engine.held) == 4
    assert grid.pull_messages([ids[10]]) == []  # it is not with the engine yet
    replies = pull_all(grid, ids)
    assert [r.metadata.reply_to_message_id for r in replies] == ids
    assert engine.order == [100 + i for i in range(11)]
    with pytest.raises(FlheError, match="node 13 takes no message"):
        grid.push_messages([asked_for("round", 1, 13)])


# --- the app ---


def test_nodes_are_under_a_clock_that_is_read_by_stage(tmp_path: Path) -> None:
    context = Context(7, 100, {"partition-id": 0}, RecordDict(), {"clocks": str(tmp_path)})

    def answer(message: Message, _context: Context) -> Message:
        if message.metadata.dst_node_id == 1:
            return Message(Error(5, "gone"), reply_to=message)
        return Message(RecordDict(), reply_to=message)

    for node, stage in ((1, "consist"), (2, "round")):
        crowd_app.clock(asked_for(stage, 1, node), context, answer)
    (path,) = tmp_path.glob("*.jsonl")
    gone, line = map(json.loads, path.read_text().splitlines())
    assert (gone["stage"], gone["failed"]) == ("consist", True)
    lines = [gone, {**line, "cpu_s": 1.0}, {**line, "cpu_s": 3.0, "peak": 1 << 40}]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    ran = Found(Asked(5, 100, 1))
    ran.read_clocks(tmp_path)
    assert ran.client_cpu_s == {"round": 2.0}  # refusals are left out
    assert ran.actor_bytes == 1 << 40


# --- a run, as it is heard of ---


def test_what_the_app_reports_is_taken_in(tmp_path: Path) -> None:
    said: list[tuple[int, int, str]] = []
    run = RayRun(Asked(5, 100, 1), 10.0, lambda *what: said.append(what))
    run._log = tmp_path / "log"
    run._log.write_text("ValueError: why\n")
    run._hear({"event": "round", "round_s": 2.0, "survivors": 5})
    run._hear({"event": "done", "peak": 9, "error": 0.0, "phases": []})
    assert said == [(1, 1, "5 clients")]
    assert (run._found.server_bytes, run._found.rounds_s) == (9, [2.0])
    with pytest.raises(FlheError, match=r"5 clients on Ray failed: it broke \(ValueError: why\)"):
        run.fail("it broke")


def model(array: Any) -> ArrayRecord:
    return ArrayRecord({"layer-0": Array(array)})


def test_one_missing_client_of_a_thousand_is_noticed() -> None:
    """Though it is less than what a single value may be off by."""
    start = np.random.default_rng(3).standard_normal(4000, np.float32)
    steps = float(STEP) * np.arange(1, 1001)
    right = (start + steps.mean()).astype(np.float32)
    assert crowd_app.error_of(model(right), model(start), 1000, 1, 0) < 1e-6
    with pytest.raises(FlheError, match="not the survivors'"):
        crowd_app.error_of(model(start), model(start), 5, 1, 0)
    for missing in (0, 999, 700):
        wrong = (start + np.delete(steps, missing).mean()).astype(np.float32)
        with pytest.raises(FlheError, match="on average"):
            crowd_app.error_of(model(wrong), model(start), 1000, 1, 0)


def test_sums_are_exact_though_clients_drop_out(tmp_path: Path) -> None:
    """The app's own server and clients, without the engine: every kind of dropout, and all phases."""
    config = {"values": 5000, "nodes": 7, "rounds": 3, "drops": 2, "timeout": 600.0}
    config |= {"scheme": "sash", "report": str(tmp_path / "report"), "clocks": str(tmp_path)}
    server = {"flhe-server-reads": True}
    with InProcessGrid(
        crowd_app.client_app(), 7, homes=tmp_path, run_config=config, node_config=lambda _: server
    ) as grid:
        crowd_app.server_app()(grid, Context(7, 1, {}, RecordDict(), config))  # type: ignore[arg-type]
    events = [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()]
    survivors = [event["survivors"] for event in events if event["event"] == "round"]
    assert len(survivors) == 3
    assert all(5 <= count <= 7 for count in survivors)
    done = events[-1]
    assert done["event"] == "done"
    assert done["error"] < 1e-5
    ran = Found(Asked(7, 5000, 3))
    ran.read_clocks(tmp_path)
    assert {"advertise", "round", "consist", "unmask"} <= ran.client_cpu_s.keys()


# --- many runs ---


def stored() -> tuple[list[Found], dict[str, Any]]:
    """The page's runs, and all that it says."""
    data = json.loads(CROWDS.read_text(encoding="utf-8"))
    return [Found.of(run) for run in data["runs"]], data


def test_the_page_shows_the_laws_of_its_runs() -> None:
    runs, data = stored()
    again = "run `flhe crowd --json --figure docs/crowds.svg > docs/crowds.json` again"
    made = command.to_data(runs, data["machine"])
    assert [law["quantity"] for law in made["laws"]] == [law["quantity"] for law in data["laws"]]
    for law, was in zip(made["laws"], data["laws"], strict=True):
        # Laws are fitted: their last bits depend on the processors at hand.
        assert law["projected"] == pytest.approx(was["projected"], rel=1e-6), again
        assert law["clients"] == FURTHER * max(run.asked.clients for run in runs)
    assert {**data, "laws": ()} == {**json.loads(json.dumps(made)), "laws": ()}, again


def test_quantities_follow_their_laws_and_no_part_exceeds_its_whole() -> None:
    members = [found(n) for n in (200, 400, 800)]
    laws = {quantity.name: quantity.law(members) for quantity in QUANTITIES}
    assert all(law is not None and law.residual < 1e-6 for law in laws.values())
    assert QUANTITIES[0].law([found(10), found(200)]) is None  # not packed, and packed
    runs, _ = stored()
    whole, *parts = (q.law(runs) for q in (QUANTITIES[-1], *MEMORY))
    assert whole is not None
    for n in (100, 2000, 1_000_000):
        assert sum(part.at(n) for part in parts if part) == pytest.approx(whole.at(n))
    for run in members:
        run.tree_bytes = run.server_bytes  # shared pages counted twice: nothing is left for others
    assert QUANTITIES[-1].law(members) is None


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = []

    class FakeRun:
        def __init__(self, asked: Asked, _timeout: float, step: Any) -> None:
            self._asked, self._step = asked, step

        def run(self) -> Found:
            self._step(1, 5, "advertise")
            ran.append(self._asked.clients)
            return replace(found(self._asked.clients), asked=self._asked)

    def crowd(*words: str, says: str = "", code: int = 0) -> str:
        done = flhe("crowd", *words)
        assert done.exit_code == code, done.output
        assert says in " ".join(done.output.split())
        return done.stdout

    monkeypatch.setattr(running, "RayRun", FakeRun)
    png = tmp_path / "out.svg"
    kept = ["--clients", "50,200", "--values", "1000", "--drops", "0.1"]
    crowd(*kept, "--figure", str(png), says="1,024 members at most today")
    assert png.stat().st_size > 10_000
    assert [run["asked"]["drops"] for run in json.loads(crowd(*kept, "--json"))["runs"]] == [5, 20]
    assert ran == [50, 200] * 2
    crowd("--clients", "many", says="name numbers", code=1)
    crowd("--clients", "2", says="--clients 2: a group has", code=1)
    crowd("--values", "0", says="--values 0: must be 1", code=1)


LIMIT_S = 1500.0
"""Seconds after which a run hangs, however busy the machine is; on a quiet one it takes some 30."""


@pytest.mark.sweep
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("drops", [0, 2])
def test_the_engine_itself(drops: int) -> None:
    ran = RayRun(Asked(9, 1000, 2, drops=drops), LIMIT_S).run()
    assert len(ran.survivors) == 2
    assert min(ran.survivors) >= 9 - drops
    stages = {"advertise", "share", "confirm", "round", "consist", "unmask"}
    assert stages <= ran.client_cpu_s.keys()
    assert ran.error < 1e-5
    assert ran.tree_bytes > ran.server_bytes > 0
