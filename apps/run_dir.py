"""Directory of one run: all that `flhe run --resume` needs.

    settings.json   the run's settings, and its number of finished rounds
    nodes/          the nodes' state directories
    server/         the server's ledger and sealed sums; nothing in it can decrypt
    rounds.jsonl    the report: one line a round
    run.log         log of Flower and the app
    model.flhe      the sealed model (elsewhere if --output was given); .npz if the server reads it
    lock            lock of the training process

A plain run cannot be resumed: it keeps its model, report and log.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flhe.errors import ConfigError, FlheError
from flhe.wire import files
from flhe_app.environment import data_home, own_name
from flhe_app.option import key_of
from flhe_app.settings import Settings

PATHS = ("data_dir", "sealed_model", "tensorboard", "plot")
"""Settings that are paths."""


@dataclass(frozen=True, slots=True)
class RunDir:
    """A run's directory, locked within the context that made it."""

    path: Path
    asked: Settings
    """The run's settings; paths are absolute, those inside `path` are left open."""
    lock: int  # Descriptor whose lock marks the directory as in use
    resumed: bool = False  # Whether an earlier run began it

    @property
    def nodes(self) -> Path:
        """Directory of the nodes' state directories."""
        return self.path / "nodes"

    @property
    def log(self) -> Path:
        """The log of Flower and the app."""
        return self.path / "run.log"

    @property
    def report(self) -> Path:
        """One line of JSON a round."""
        return self.path / "rounds.jsonl"

    @property
    def resumable(self) -> bool:
        """True if the nodes have agreed on keys, so that the run can be resumed."""
        return self.asked.encrypted and (self.path / "server" / "ledger").exists()

    @property
    def hint(self) -> str:
        """Command that resumes the run; "" if it cannot be resumed."""
        command = [own_name(), "run", "--resume", str(self.path)]
        return f"resume it: {shlex.join(command)}" if self.resumable else ""

    @property
    def settings(self) -> Settings:
        """Run config of the next Flower run, with absolute paths."""
        model = self.asked.sealed_model or str(self.path / f"model{self.asked.model_suffix}")
        settings = replace(self.asked, report=str(self.report), sealed_model=model)
        if not self.asked.encrypted:
            return settings
        return replace(settings, state_dir=str(self.path / "server"), resume=self.resumable)

    def events(self) -> list[dict[str, Any]]:
        """Return the events of the report; remove a line that a crash cut short."""
        if not self.report.exists():
            return []
        *lines, cut = self.report.read_bytes().split(b"\n")
        if cut:
            files.replace(self.report, [line + b"\n" for line in lines])
        return [json.loads(line) for line in lines]

    def save(self, *, finished: int = 0) -> None:
        """Write the settings, and that `finished` rounds are done and their model is written."""
        content = {"version": 1, "finished": finished, "settings": self.asked.to_config()}
        files.replace(self.path / "settings.json", [json.dumps(content, indent=2).encode()])


@contextmanager
def created(settings: Settings) -> Iterator[RunDir]:
    """Create a directory for a run of `settings`, below the user's data directory."""
    base = data_home() / "runs"
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=base))  # 0700
    except OSError as error:
        raise ConfigError(
            f"{base} cannot be written ({error.strerror}): "
            "set XDG_DATA_HOME to a directory of yours"
        ) from error
    paths: dict[str, Any] = {name: absolute(getattr(settings, name)) for name in PATHS}
    asked = replace(settings, **paths)
    with _locked(path) as lock:
        run_dir = RunDir(path, asked, lock)
        if asked.encrypted:
            run_dir.nodes.mkdir(mode=0o700)
            run_dir.save()
        yield run_dir


@contextmanager
def reopened(path: Path, given: Mapping[str, Any]) -> Iterator[RunDir]:
    """Open the directory of an earlier run for resuming.

    `given` are settings by field: at most a new `num_rounds`.

    Raises ConfigError: it is not a run's, is in use, is finished, or more is given.
    """
    path = Path(absolute(str(path)))
    if not (path / "settings.json").is_file():
        raise ConfigError(
            f"--resume {path}: holds no run that can be resumed; name the directory of an "
            "encrypted run, as its last message did"
        )
    with _locked(path) as lock:
        before, finished = _read(path)
        asked = replace(before, num_rounds=given.get("num_rounds", before.num_rounds))
        if given.keys() - {"num_rounds"} or asked.num_rounds < before.num_rounds:
            got = ", ".join(f"{key_of(name)}={value!r}" for name, value in given.items())
            raise ConfigError(
                f"--resume {path}: the run keeps its settings, and has {before.num_rounds} rounds or "
                f"more, got {got}; give a larger --rounds alone, or start a new run"
            )
        if finished >= asked.num_rounds:
            raise ConfigError(
                f"--resume {path}: the run is finished, with {finished} rounds; say --rounds with "
                "a larger number to train more"
            )
        run_dir = RunDir(path, asked, lock, resumed=True)
        run_dir.save(finished=finished)
        yield run_dir


def absolute(path: str) -> str:
    """Return `path` for processes that run elsewhere; "" stays."""
    return str(Path(path).expanduser().absolute()) if path else ""


def _read(path: Path) -> tuple[Settings, int]:
    """Return settings and the number of finished rounds."""
    try:
        match json.loads(files.read(path / "settings.json")):
            case {"version": 1, "finished": int(finished), "settings": dict(config)}:
                return Settings.from_config(config), finished
        raise ConfigError("its settings.json is damaged, or of another version of flhe")
    except (FlheError, ValueError) as error:
        raise ConfigError(f"--resume {path}: {error}") from error


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Hold the directory's lock, until the last process with the descriptor ends."""
    try:
        handle = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}): name a directory of yours"
        ) from error
    with os.fdopen(handle, "rb"):  # closes it
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"--resume {path}: another `flhe run` is at work there, or processes of it remain; "
                "wait until they have ended, or end them"
            ) from None
        yield handle
