"""The real app on real data, in one process, with every byte that reaches the server captured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from flwr.app import ArrayRecord

from flhe.keys.agreement.epoch import Epoch
from flhe.training.model import Model
from flhe.training.session import Session
from flhe_app import client_app
from flhe_app.settings import Settings
from flhe_lab.rehearsal.search import Search, Secrets
from tests.apps.federation import Federated

NODES, ROUNDS = 3, 2


class Capture:
    """Every object on its way to the server, and every secret that must not be in it."""

    def __init__(self) -> None:
        self.up: list[bytes] = []
        self.vectors: list[np.ndarray[Any, Any]] = []
        self.trained: list[np.ndarray[Any, Any]] = []
        self.counts: set[int] = set()
        self.keys: dict[str, bytes] = {}

    def tap(self, direction: str, _node: int, content: bytes) -> None:
        if direction == "up":
            self.up.append(content)

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Note what each client is about to encode, in every form that it passes through."""
        encode = Session.encode

        def noting(session: Session, old: Model, trained: Any, n: int, *rest: Any) -> Any:
            encoded = encode(session, old, trained, n, *rest)
            self.counts.add(n)
            floats, _ = session.layout.change(trained, old.masters)
            flat = [a.reshape(-1) for a in trained.values()]
            models = [m.reshape(-1) for m in old.masters.values()]
            self.vectors += [floats, encoded.values, encoded.extras, *flat, *models]
            return encoded

        monkeypatch.setattr(Session, "encode", noting)

        def trained(state: dict[str, Any]) -> ArrayRecord:
            """What the app itself hands back, in a plain run as well."""
            record = ArrayRecord(state)
            self.trained += [array.numpy().reshape(-1) for array in record.values()]
            return record

        monkeypatch.setattr(client_app, "ArrayRecord", trained)

    def collect_keys(self, homes: list[Path]) -> None:
        for home in homes:
            self.keys[f"{home.name} identity"] = (home / "identity.key").read_bytes()
            for file in (home / "epochs").iterdir():
                epoch = Epoch.from_bytes(file.read_bytes())
                self.keys[f"{home.name} group key"] = bytes(epoch.group_key)
                pair_keys = {i: bytes(key) for i, key in enumerate(epoch.pair_keys) if key}
                self.keys |= {f"{home.name} pair key {i}": key for i, key in pair_keys.items()}

    def found(self) -> set[str]:
        """What of it can be read in what the server received, raw or in any text."""
        secrets, wire = Secrets(), b"\x00".join(self.up)
        for name, key in self.keys.items():
            secrets.add(name, key)
        for vector in self.vectors + self.trained:
            kinds = ("<f4", ">f4", "<f8") if vector.dtype.kind == "f" else ("<i2", "<i4", "<i8")
            written = [vector[-500:].astype(kind).tobytes() for kind in kinds]
            secrets.add(f"vector of {vector.size} {vector.dtype}", *written)
        found = {one.kind for one in Search(secrets).find([("up", wire)])}
        for kind in ("<i8", ">i8", "<f8", ">f8"):
            found |= {"count" for n in self.counts if np.array(n, kind).tobytes() in wire}
        return found


class Outcome(Federated):
    """A run, and all that was on its way to the server."""

    def __init__(self, tmp: Path, scheme: str) -> None:
        self.capture = Capture()
        settings = Settings(scheme=scheme, num_rounds=ROUNDS, nodes=NODES)
        with pytest.MonkeyPatch.context() as monkeypatch:
            self.capture.watch(monkeypatch)
            allow = {"flhe-server-reads": True, "flhe-fresh-keys": False}
            super().__init__(tmp, settings, allow, self.capture.tap)


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return Outcome(tmp_path_factory.mktemp("e2e"), "flashe")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return Outcome(tmp_path_factory.mktemp("e2e"), "plain")


def test_learns_as_well_as_plain_fedavg(encrypted: Outcome, plain: Outcome) -> None:
    assert encrypted.survivors == plain.survivors == [NODES] * ROUNDS
    assert encrypted.accuracy >= 0.9
    assert abs(encrypted.accuracy - plain.accuracy) <= 0.01
    assert encrypted.reports[1].bytes_up < plain.reports[1].bytes_up


def test_nothing_readable_reaches_the_server(encrypted: Outcome) -> None:
    capture = encrypted.capture
    capture.collect_keys(encrypted.homes)
    assert len(capture.keys) == NODES * (2 + NODES - 1)
    assert len(capture.counts) >= 1
    assert len(capture.vectors) > NODES * ROUNDS
    assert sum(map(len, capture.up)) > 100_000
    assert capture.found() == set()


def test_the_search_finds_what_plain_fedavg_sends(plain: Outcome, encrypted: Outcome) -> None:
    """The control: what the app trained, which the encrypted run hides, a plain one does not."""
    capture = plain.capture
    assert len(capture.trained) == len(encrypted.capture.trained) > 0
    assert any(hit.startswith("vector") for hit in capture.found())
    told = {r.content["metrics"]["num-examples"] for r in plain.replies}
    assert encrypted.capture.counts <= told  # the very counts, readable in a plain run's records
    capture.vectors, capture.trained = [], []
    capture.keys = {"planted": b"\x01planted key of thirty-two byte"}
    assert "planted" not in capture.found()
    capture.up.append(capture.keys["planted"].hex().encode())
    assert "planted" in capture.found()


def test_only_listed_records_and_metrics_leave(encrypted: Outcome) -> None:
    ours = {"flhe.reply", "flhe.update", "flhe.opened", "flhe.checkpoint"}
    ours |= {f"flhe.{what}.{r}" for what in ("means", "evaluation") for r in range(1, ROUNDS + 1)}
    seen: set[str] = set()
    for reply in encrypted.replies:
        assert not reply.has_error()
        assert set(reply.content) <= ours
        for record in reply.content.metric_records.values():
            seen |= set(record)
            assert not encrypted.capture.counts & {v for v in record.values() if v == int(v)}
        for config in reply.content.config_records.values():
            numbers = {v for v in config.values() if isinstance(v, int)}
            assert not encrypted.capture.counts & numbers
    assert seen == {"loss", "accuracy", "train_loss", "train_accuracy"}
