"""Clients on Ray: what is noted of them, how it grows, what is kept; the engine itself by name."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import typer
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from flhe import records
from flhe.errors import ConfigError, FlheError
from flhe.sim import ray_app, ray_crowd, ray_plot
from flhe.sim.growth import growth, together
from flhe.sim.phases import PhaseGrid, masking_bytes
from flhe.sim.window import Window
from flhe.sim.inproc import InProcessGrid
from flhe.sim.ray_found import Asked, Found
from flhe.sim.ray_report import FURTHER, MEMORY, QUANTITIES, kinds, table
from flhe.sim.ray_run import RayRun, _federation, _held

CROWDS = Path(__file__).parents[2] / "docs" / "crowds.json"
WHOLE = "all processes"


@pytest.fixture(autouse=True)
def _identity() -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1


def found(clients: int, neighbours: int = 0, rounds: int = 2) -> Found:
    """A run that grows as theory says."""
    n, near = clients, neighbours or clients
    phases = [
        {
            "name": name,
            "round": number,
            "wall_s": 1.0,
            "server_s": 0.001 * n * near,
            "grid_s": 0.002 * n,
            "answers": n,
            "up_bytes_total": 100 * n * near,
            "down_bytes_total": 300 * n * near,
        }
        for name, number in (("advertise", 0), ("round", 1), ("round", rounds))
    ]
    return Found(
        Asked(n, 1000, rounds, neighbours),
        rounds_s=[float(n), float(n)],
        survivors=[n, n],
        client_s={"advertise": 0.1, "round": 0.2},
        client_cpu_s={"advertise": 0.01 * n, "round": 0.02 * near},
        phases=phases,
        server_bytes=10**8 + 1000 * n * near,
        actor_bytes=10**8,
        tree_bytes=10**9 + 1000 * n * near,
        error=1e-6,
    )


# --- growth ---


@given(
    st.lists(st.integers(3, 1000), min_size=4, max_size=8, unique=True),
    st.tuples(st.floats(0, 100), st.floats(0.01, 10), st.floats(0, 1)),
)
def test_a_law_that_holds_is_found(clients: list[int], factors: tuple[float, ...]) -> None:
    amounts = [sum(c * n**p for p, c in enumerate(factors)) for n in clients]
    law = growth(clients, amounts, (0, 1, 2))
    assert law.residual < 1e-6
    assert law.at(500) == pytest.approx(sum(c * 500**p for p, c in enumerate(factors)), rel=1e-3)
    assert min(law.factors) >= 0


def test_a_law_is_what_theory_says_and_not_what_fits() -> None:
    clients = [10, 100, 1000]
    law = growth(clients, [float(n) ** 2 for n in clients], (0, 1))
    assert law.residual > 0.5
    falling = growth(clients, [100.0, 50.0, 10.0], (0, 1))
    assert (falling.name, falling.factors[1]) == ("constant", 0.0)
    assert growth([10, 20], [1.0, 2.0], (0, 1, 2)).at(40) == pytest.approx(4.0)


def test_a_whole_grows_as_the_sum_of_its_parts() -> None:
    clients = [10, 100, 1000]
    fixed = growth(clients, [5.0, 5.0, 5.0], (0, 1))
    square = growth(clients, [float(n) ** 2 for n in clients], (2,))
    whole = together([fixed, square], clients, [5.0 + n**2 for n in clients])
    assert (whole.powers, whole.name, whole.points) == ((0, 1, 2), "quadratic", 3)
    assert whole.at(10_000) == pytest.approx(5 + 10_000**2)
    assert whole.residual < 1e-6
    assert together([fixed], clients, [10.0] * 3).residual == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("clients", "amounts", "powers"),
    [
        ([5], [1.0], (1,)),
        ([5, 6], [1.0, 0.0], (1,)),
        ([5, 6], [1.0, 2.0], (3,)),
        ([5, 6], [1.0, 2.0], ()),
    ],
)
def test_no_law(clients: list[int], amounts: list[float], powers: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError):
        growth(clients, amounts, powers)


# --- grids ---


class Echo:
    """A node that answers with an upload as large as what it got."""

    def __call__(self, message: Message, _context: Any) -> Message:
        content = RecordDict(
            {
                records.UPDATE: ArrayRecord({"a": Array("uint8", (40,), "raw", bytes(40))}),
                records.REPLY: ConfigRecord({"x": b"12345"}),
            }
        )
        return Message(content, reply_to=message)


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
    inside = InProcessGrid(Echo(), 3)  # type: ignore[arg-type]
    grid = PhaseGrid(inside)
    assert grid.nodes_work_here
    try:
        for stage, round_ in (("advertise", 0), ("round", 1), ("consist", 1), ("round", 2)):
            ids = [
                i for n in range(3) for i in grid.push_messages([asked_for(stage, round_, 100 + n)])
            ]
            pull_all(grid, ids)
    finally:
        inside.close()
    grid.end()
    assert [(p.name, p.round) for p in grid.phases] == [
        ("advertise", 0), ("round", 1), ("consist", 1), ("round", 2)
    ]  # fmt: skip
    for phase in grid.phases:
        assert phase.up.keys() == phase.down.keys() == {100, 101, 102}
        assert set(phase.up.values()) == {45}
        assert set(phase.uploads.values()) == {40}
        assert set(phase.beside.values()) == {7}
        assert phase.wall_s > 0
        assert min(phase.server_s, phase.grid_s) > 0
    said = grid.phases[1].to_json()
    assert (said["answers"], said["up_bytes"], said["up_bytes_total"]) == (3, 45, 135)
    # Round 1: what came beside the request and the upload, and all of CONSIST.
    down = next(iter(grid.phases[2].down.values()))
    assert masking_bytes(grid.phases) == 7 + 5 + down + 5


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


def test_a_node_is_under_a_clock(tmp_path: Path) -> None:
    context = Context(7, 100, {"partition-id": 0}, RecordDict(), {"clocks": str(tmp_path)})
    message = asked_for("consist", 1, 100)

    def answer(message: Message, _context: Context) -> Message:
        return Message(Error(5, "gone"), reply_to=message)

    assert ray_app.clock(message, context, answer).has_error()
    (path,) = tmp_path.glob("*.jsonl")
    line = json.loads(path.read_text())
    assert (line["stage"], line["failed"]) == ("consist", True)
    assert line["peak"] > 10 << 20
    assert line["cpu_s"] >= 0


def test_the_app_is_one_that_flower_reads() -> None:
    import tomllib

    config = tomllib.loads(ray_app.FILES["pyproject.toml"])["tool"]["flwr"]["app"]["config"]
    assert config["scheme"] == "sash"
    for name in ("server_app.py", "client_app.py"):
        scope: dict[str, Any] = {}
        exec(ray_app.FILES[name], scope)
        assert scope["app"] is not None


# --- a run, as it is heard of ---


def test_what_the_app_reports_is_taken_in(tmp_path: Path) -> None:
    said: list[tuple[int, str]] = []
    run = RayRun(Asked(5, 100, 1), 10.0, lambda *what: said.append(what))
    run._log = tmp_path / "log"
    run._log.write_text("ValueError: why\n")
    run._hear({"event": "idle", "resident": 5})
    run._hear({"event": "phase", "phase": "share", "round": 0, "answers": 2})
    run._hear({"event": "phase", "phase": "round", "round": 1, "answers": 3})
    run._hear({"event": "round", "round_s": 2.0, "survivors": 5})
    run._hear({"event": "done", "peak": 9, "error": 0.0, "masking_bytes": 4, "phases": []})
    assert said == [(2, "5 clients: share"), (3, "5 clients: round 1, round")]
    assert run._done
    assert (run._found.idle_bytes, run._found.server_bytes, run._found.rounds_s) == (5, 9, [2.0])
    with pytest.raises(FlheError, match=r"5 clients on Ray failed: it broke \(ValueError: why\)"):
        run._hear({"event": "failed", "error": "it broke"})


def test_clocks_are_read_by_stage(tmp_path: Path) -> None:
    line = {"stage": "round", "wall_s": 1.0, "cpu_s": 0.5, "peak": 10, "failed": False}
    lines = [line, {**line, "wall_s": 3.0, "peak": 30}, {**line, "wall_s": 9.0, "failed": True}]
    (tmp_path / "1.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    ran = Found(Asked(5, 100, 1))
    ran.read_clocks(tmp_path)
    assert ran.client_s == {"round": 2.0}
    assert ran.client_cpu_s == {"round": 0.5}
    assert ran.actor_bytes == 30


def test_what_a_tree_of_processes_holds() -> None:
    import os

    assert 10 << 20 < sum(_held(os.getpid())) < 1 << 40
    assert list(_held(1 << 29)) == []


def test_an_actor_for_each_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flhe.sim.ray_run.cpus", lambda: 4)
    assert _federation(1000).startswith("num-supernodes=1000 ")
    assert _federation(1000).endswith("init-args-num-cpus=4")
    assert _federation(3).endswith("init-args-num-cpus=3")


@pytest.mark.parametrize(
    "sizes", [(2, 10, 1), (1025, 10, 1), (5, 0, 1), (5, 10, 0), (5, 10, 1, -1)]
)
def test_federations_that_there_cannot_be(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="--"):
        Asked(*sizes)


# --- many runs ---


def test_a_graph_only_where_there_is_one() -> None:
    asked = ray_crowd.plan((50, 200), 1000, 2, 150)
    assert [(a.clients, a.neighbours) for a in asked] == [(50, 0), (200, 0), (200, 150)]
    assert len(ray_crowd.plan((50, 200), 1000, 2, 0)) == 2


def test_what_was_run_is_not_run_again() -> None:
    asked, ran, kept = [Asked(n, 1000, 2) for n in (5, 6, 7)], [], []

    def run(one: Asked) -> Found:
        ran.append(one.clients)
        return found(one.clients)

    runs = ray_crowd.crowds(asked, run, lambda runs: kept.append(len(runs)), [found(6)])
    assert [r.asked.clients for r in runs] == [5, 6, 7]
    assert (ran, kept) == ([5, 7], [2, 3])


def test_runs_come_back_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    assert ray_crowd.read(path) == []
    runs = [found(50), found(100), found(200), found(200, 150)]
    data = ray_crowd.to_data(runs)
    path.write_text(json.dumps(data))
    assert ray_crowd.read(path) == runs
    laws = {(law["kind"], law["quantity"]): law for law in data["laws"]}
    assert laws["SASH", "client, round"]["law"] == "linear"
    assert laws["SASH", "client, round"]["projected"] == pytest.approx(0.02 * 2000)
    assert laws["SASH", "server, round"]["law"] == "quadratic"
    data["machine"]["flhe"] = "0.0"
    path.write_text(json.dumps(data))
    assert ray_crowd.read(path) == []  # of another release
    path.write_text("{}")
    with pytest.raises(ConfigError, match="holds no runs"):
        ray_crowd.read(path)


def test_quantities_follow_their_laws() -> None:
    for kind, members in kinds([found(n, k) for k in (0, 150) for n in (200, 400, 800)]).items():
        for quantity in QUANTITIES:
            law = quantity.law(members)
            assert law is not None
            assert law.residual < 1e-6, (kind, quantity.name)
    assert QUANTITIES[0].law([found(10), found(200)]) is None  # not packed, and packed


def test_a_part_is_never_projected_beyond_its_whole() -> None:
    runs, _ = ray_crowd.stored(CROWDS)
    whole = next(q for q in QUANTITIES if q.name == WHOLE).law(runs)
    parts = [part.law(runs) for part in MEMORY]
    assert whole is not None
    for n in (100, 1000, 2000, 10_000, 1_000_000):
        amounts = [part.at(n) for part in parts if part is not None]
        assert len(amounts) == len(MEMORY)
        assert sum(amounts) == pytest.approx(whole.at(n))
    assert whole.residual < 0.05


def test_a_whole_without_all_its_parts_has_no_law() -> None:
    runs = [found(100), found(200)]
    for run in runs:
        run.tree_bytes = run.server_bytes  # shared pages counted twice: nothing is left for others
        assert run.other_bytes == 0
    assert next(q for q in QUANTITIES if q.name == WHOLE).law(runs) is None


def test_the_page_shows_the_laws_of_its_runs() -> None:
    runs, machine = ray_crowd.stored(CROWDS)
    data = json.loads(CROWDS.read_text(encoding="utf-8"))
    again = "run `python -m flhe.sim.ray_crowd --redraw --json docs/crowds.json` again"
    made = ray_crowd.to_data(runs, machine)
    assert [law["quantity"] for law in made["laws"]] == [law["quantity"] for law in data["laws"]]
    for law, was in zip(made["laws"], data["laws"], strict=True):
        # Laws are fitted: their last bits depend on the processors at hand.
        assert law["projected"] == pytest.approx(was["projected"], rel=1e-6), again
        assert law["clients"] == FURTHER * max(run.asked.clients for run in runs)
    assert {**data, "laws": ()} == {**json.loads(json.dumps(made)), "laws": ()}, again


def test_the_table_says_what_is_projected() -> None:
    console = Console(width=130, record=True)
    console.print(table("SASH", [found(100), found(200)]))
    text = console.export_text()
    assert "~2,000" in text
    assert "1,024 members at most today" in " ".join(text.split())
    assert "quadratic" in text
    assert "…" not in text


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class FakeRun:
        def __init__(self, asked: Asked, _timeout: float, step: Any) -> None:
            self._asked, self._step = asked, step

        def run(self) -> Found:
            self._step(1, "advertise")
            return found(self._asked.clients, self._asked.neighbours)

    monkeypatch.setattr(ray_crowd, "RayRun", FakeRun)
    app = typer.Typer()
    app.command()(ray_crowd.command)
    file, png = tmp_path / "out.json", tmp_path / "out.png"
    arguments = ["--values", "1000", "--json", str(file), "--figure", str(png)]
    done = CliRunner().invoke(app, ["--clients", "50,200", *arguments])
    assert done.exit_code == 0, done.output
    assert "SASH+, 150 neighbours" in done.output
    assert png.stat().st_size > 10_000
    assert len(json.loads(file.read_text())["runs"]) == 3
    monkeypatch.setattr(ray_crowd, "RayRun", None)  # nothing is left to run
    done = CliRunner().invoke(app, ["--clients", "50 200", "--resume", *arguments[:-2]])
    assert done.exit_code == 0, done.output
    for wrong, why in (
        (["--clients", "many"], "name numbers"),
        (["--resume"], "needs --json"),
        (["--redraw"], "needs --json"),
        (["--redraw", "--json", str(tmp_path / "none.json")], "holds no runs"),
    ):
        done = CliRunner().invoke(app, wrong)
        assert done.exit_code == 1
        assert why in done.output


def test_redrawing_runs_nothing_and_keeps_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ray_crowd, "RayRun", None)
    file, png = tmp_path / "out.json", tmp_path / "out.png"
    data = ray_crowd.to_data([found(100), found(200)], {"processor": "another one"})
    file.write_text(json.dumps({**data, "laws": []}))
    app = typer.Typer()
    app.command()(ray_crowd.command)
    done = CliRunner().invoke(app, ["--redraw", "--json", str(file), "--figure", str(png)])
    assert done.exit_code == 0, done.output
    assert json.loads(file.read_text()) == json.loads(json.dumps(data))
    assert png.stat().st_size > 10_000


def test_a_figure_of_one_kind(tmp_path: Path) -> None:
    ray_plot.plot([found(10)], tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert asdict(found(10))["asked"]["clients"] == 10


@pytest.mark.sweep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("drops", [0, 2])
def test_the_engine_itself(drops: int) -> None:
    ran = RayRun(Asked(9, 1000, 2, drops=drops), 500.0).run()
    assert len(ran.survivors) == 2
    assert min(ran.survivors) >= 9 - drops
    assert {"advertise", "share", "confirm", "round", "consist", "unmask"} <= ran.client_s.keys()
    assert ran.error < 1e-5
    assert ran.tree_bytes > ran.server_bytes > ran.idle_bytes > 0
