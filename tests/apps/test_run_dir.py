"""A run's directory: what is kept there, who may use it, and when it can be resumed."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest

from flhe.errors import ConfigError, FlheError
from flhe_app import flower_run, launch, run_dir
from flhe_app.outcome import Outcome
from flhe_app.run_command import How
from flhe_app.settings import Settings
from flhe_app.signals import Stopped

ROUND = {"event": "round", "round": 1, "accuracy": 0.5, "bytes_up": 7}
FINISHED = Settings(num_rounds=3)


@pytest.fixture(autouse=True)
def _data(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def begun(settings: Settings, *, ledger: bool = True) -> pathlib.Path:
    """The directory of a run that ended before it was done."""
    with run_dir.created(settings) as made:
        if ledger:
            (made.path / "server").mkdir()
            (made.path / "server/ledger").touch()
        return made.path


@pytest.mark.parametrize("scheme", ["flashe", "plain"])
def test_a_new_directory_is_private_and_says_what_was_asked(
    scheme: str, tmp_path: pathlib.Path
) -> None:
    with run_dir.created(Settings(scheme, seed=7, tensorboard="board")) as made:
        path, encrypted = made.path, scheme != "plain"
        assert path.parent == tmp_path / "data/flhe/runs"
        assert path.stat().st_mode & 0o777 == 0o700
        assert (made.resumable, made.hint) == (False, "")
        kept = {"state_dir": str(path / "server")} if encrypted else {}
        model = path / ("model.flhe" if encrypted else "model.npz")
        paths = {"report": str(path / "rounds.jsonl"), "sealed_model": str(model)}
        paths["tensorboard"] = str(pathlib.Path("board").absolute())  # Flower runs elsewhere
        assert made.settings == Settings(scheme, seed=7, **paths, **kept)
        assert made.events() == []
        whole = json.dumps(ROUND) + "\n"
        made.report.write_text(whole + '{"event": "rou')  # a torn line
        assert made.events() == [ROUND]
        assert made.report.read_text() == whole
        assert made.events() == [ROUND]
        made.report.unlink()
        entries = {entry.name: entry.stat().st_mode & 0o777 for entry in path.iterdir()}
        own = {"settings.json": 0o600, "nodes": 0o700} if encrypted else {}
        assert entries == {"lock": 0o600, **own}


def test_what_was_begun_goes_on_with_its_settings(tmp_path: pathlib.Path) -> None:
    path = begun(Settings(seed=7, clip=0.5, rekey_every=2))
    with run_dir.reopened(path, {}) as found:
        assert found.resumed
        assert found.resumable
        assert found.hint.endswith(f"run --resume {path}")
        assert found.settings.resume
        assert found.asked == Settings(seed=7, clip=0.5, rekey_every=2)
        assert found.nodes == path / "nodes"
    moved = path.rename(tmp_path / "moved")
    with run_dir.reopened(moved, {}) as found:
        assert found.settings.state_dir == str(moved / "server")
        assert found.nodes == moved / "nodes"
    with run_dir.reopened(begun(Settings(), ledger=False), {}) as found:
        assert not found.settings.resume  # it starts from the beginning


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": 0}, "the run keeps its settings, and has 3 rounds or more, got seed=0"),
        ({"num_rounds": 2}, "has 3 rounds or more, got num-rounds=2; give a larger --rounds alone"),
    ],
    ids=str,
)
def test_contradictions_are_refused(given: dict[str, object], message: str) -> None:
    path = begun(FINISHED)
    before = (path / "settings.json").read_bytes()
    with pytest.raises(ConfigError, match=message), run_dir.reopened(path, given):
        pass
    assert (path / "settings.json").read_bytes() == before


def test_a_finished_run_goes_on_only_with_more_rounds() -> None:
    path = begun(FINISHED)
    with run_dir.reopened(path, {}) as found:
        found.save(finished=3)
    refused = pytest.raises(ConfigError, match="finished, with 3 rounds; say --rounds")
    with refused, run_dir.reopened(path, {}):
        pass
    with run_dir.reopened(path, {"num_rounds": 4}) as found:
        assert (found.settings.resume, found.asked.num_rounds) == (True, 4)
    with run_dir.reopened(path, {}) as found:  # stopped in between
        assert found.asked.num_rounds == 4


def test_one_at_a_time() -> None:
    path = begun(Settings())
    refused = pytest.raises(ConfigError, match="another `flhe run` is at work there")
    with run_dir.reopened(path, {}), refused, run_dir.reopened(path, {}):
        pass
    with run_dir.reopened(path, {}):
        pass


def test_what_is_no_run_is_refused(tmp_path: pathlib.Path) -> None:
    refused = pytest.raises(ConfigError, match="holds no run that can be resumed")
    with refused, run_dir.reopened(tmp_path, {}):
        pass
    path = begun(Settings())
    for content in ("[]", "no json", '{"version": 2}'):
        (path / "settings.json").write_text(content)
        with pytest.raises(ConfigError, match=f"--resume {path}: "), run_dir.reopened(path, {}):
            pass


def test_rounds_are_counted_once_and_old_failures_forgotten() -> None:
    def report(number: int, **more: Any) -> dict[str, Any]:
        return {**ROUND, "round": number, **more}

    events = [{"event": "start", "model_bytes": 9, "nodes": 3}, report(1), report(2)]
    ends = [{"event": "failed", "error": "x"}, {"event": "done", "sealed_model": "m"}]
    outcome = Outcome.earlier([*events, *ends, report(2, bytes_up=0), report(4), report(3)])
    assert [known["round"] for known in outcome.rounds] == [1, 2, 3, 4]
    assert outcome.rounds[1]["bytes_up"] == 7
    assert outcome.told("start", "model_bytes") == 9
    assert [*outcome.others] == ["start"]
    assert outcome.read(report(5))
    assert not outcome.read(report(5))


class Ends:
    """A Flower run that ends at once, as `how` says, perhaps after the nodes agreed on keys."""

    how: BaseException | None = None
    agreed = True

    def __init__(self, of: run_dir.RunDir, *_: object) -> None:
        self._of = of

    def run(self) -> Outcome:
        self._of.log.touch()
        if self.agreed and self._of.asked.encrypted:
            (self._of.path / "server").mkdir(exist_ok=True)
            (self._of.path / "server/ledger").touch()
        if self.how:
            raise self.how
        self._of.report.touch()
        pathlib.Path(self._of.settings.sealed_model).touch()
        return Outcome(others={"done": {}})


@pytest.mark.parametrize("how", [Stopped(2), FlheError("too few")])
def test_a_resumed_run_is_never_removed(
    how: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = begun(FINISHED, ledger=False)
    ends = type("Ended", (Ends,), {"how": how, "agreed": False})
    monkeypatch.setattr(flower_run, "FlowerRun", ends)
    with pytest.raises(type(how)):
        launch.resume(path, {}, How())
    assert (path / "settings.json").exists()


PLAIN = Settings(scheme="plain")
KEPT = ["lock", "nodes", "run.log", "server", "settings.json", "finished 0"]
WELL = ["lock", "model.flhe", "nodes", "rounds.jsonl", "run.log", "server", "settings.json"]
TOO_FEW = FlheError("too few")
HINT = r"resume it: .*flhe run --resume /.*$"


@pytest.mark.parametrize(
    ("settings", "how", "agreed", "said", "left"),
    [
        (FINISHED, None, True, "", [*WELL, "finished 3"]),
        (PLAIN, None, True, "", ["lock", "model.npz", "rounds.jsonl", "run.log"]),
        (FINISHED, TOO_FEW, True, "^too few; " + HINT, KEPT),
        (FINISHED, Stopped(2), True, "^" + HINT, KEPT),
        *((s, Stopped(2), False, "^$", []) for s in (FINISHED, PLAIN)),
        (FINISHED, TOO_FEW, False, "^too few$", ["lock", "nodes", "run.log", *KEPT[-2:]]),
        (PLAIN, TOO_FEW, False, "^too few$", ["lock", "run.log"]),
    ],
)
def test_what_a_run_leaves_and_says(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    settings: Settings,
    how: BaseException | None,
    agreed: bool,
    said: str,
    left: list[str],
) -> None:
    """What can be resumed says how to go on; what was stopped before that is gone."""
    monkeypatch.setattr(
        flower_run, "FlowerRun", type("Ended", (Ends,), {"how": how, "agreed": agreed})
    )
    raised: BaseException | None = None
    try:
        launch.run(settings, How())
    except (FlheError, Stopped) as error:
        raised = error
    runs = tmp_path / "data/flhe/runs"
    found = sorted(entry.name for entry in runs.glob("*/*"))
    for file in runs.glob("*/settings.json"):
        found.append(f"finished {json.loads(file.read_text())['finished']}")
    assert found == left
    assert (raised is None) == (how is None)
    if raised is not None:
        text = raised.hint if isinstance(raised, Stopped) else str(raised)
        assert re.search(said, text)
