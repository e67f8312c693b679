"""A federation of hundreds in one process under SASH: whether it finishes, its size, what travels.

    python -m flhe.sim.crowd [--clients 200] [--values 100000] [--rounds 3] [--drops 0.1] [--json FILE]

Every message goes through Flower's wire format and every node keeps its state on disk, as in a
deployment. Clients add a known number instead of training, so that the model tells whether the sums
were exact. Who drops out, and at which stage, follows from the round.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from flwr.app import Message
from rich.console import Console
from rich.table import Table

from flhe import records
from flhe.apps.dropouts import dropout, drops_at
from flhe.errors import FlheError
from flhe.schemes.sash import most_bits
from flhe.sim.bench import machine, quiet, write_json
from flhe.sim.bench_table import progress
from flhe.sim.inproc import InProcessGrid
from flhe.sim.synthetic import STEP, client_app, initial, resident, warm_up
from flhe.strategies import sash_fedavg
from flhe.strategies.report import RoundReport

TIMEOUT_S = 3600.0
AGREEMENT = ("mask-key", "mask-share", "consist", "unmask")
"""Stages of the masking-key agreement; its shares come with the update."""


@dataclass(slots=True)
class Crowd:
    """What a federation took.

    Parameters
    ----------
    agreement_s : float
        Seconds of the key agreement, once an epoch.
    rounds_s : list of float
        Seconds of each round.
    peak_bytes : int
        Most that was resident, all nodes and the server together.
    masking_bytes : int
        What the masking-key agreement of a round moved for one client, up and down, at most.
    upload_bytes : int
        One client's ciphertext.
    error : float
        Largest error of the final model.
    """

    clients: int
    values: int
    drops: int
    survivors: list[int] = field(default_factory=list)
    agreement_s: float = 0.0
    rounds_s: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    masking_bytes: int = 0
    upload_bytes: int = 0
    error: float = 0.0


class _Counting(InProcessGrid):
    """Counts what travels for the masking-key agreement."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.moved: dict[tuple[int, int], int] = {}
        """(round, node) -> bytes, up and down."""
        self.upload_bytes = 0
        self.first_round_at = 0.0
        self._round = 0
        self._about: dict[str, tuple[int, str]] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """As the grid's, counted."""
        ids = []
        for message in messages:
            node, stage = message.metadata.dst_node_id, _stage(message)
            record = records.find_config(message.content, records.STAGE)
            if record is not None and stage in ("round", *AGREEMENT):
                self._round = int(str(record["round"]))
                self.first_round_at = self.first_round_at or time.monotonic()
            if stage in AGREEMENT:
                self._count_bytes(node, records.message_bytes(message.content))
            sent = super().push_messages([message])
            self._about |= dict.fromkeys(sent, (node, stage))
            ids += sent
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """As the grid's, counted."""
        replies = super().pull_messages(message_ids)
        for reply in replies:
            node, stage = self._about[reply.metadata.reply_to_message_id]
            if reply.has_error():
                continue
            if stage == "round":
                self._note_upload(node, reply)
            elif stage in AGREEMENT:
                self._count_bytes(node, records.message_bytes(reply.content))
        return replies

    def _note_upload(self, node: int, reply: Message) -> None:
        answer = records.find_config(reply.content, records.REPLY)
        assert answer is not None
        self._count_bytes(node, sum(map(len, records.bytes_list(answer, "shares"))))
        self._count_bytes(node, len(records.optional(answer, "masked-seed", b"")))
        arrays = reply.content.array_records[records.UPDATE]
        self.upload_bytes = sum(len(array.data) for array in arrays.values())

    def _count_bytes(self, node: int, count: int) -> None:
        key = self._round, node
        self.moved[key] = self.moved.get(key, 0) + count


def _stage(message: Message) -> str:
    record = records.find_config(message.content, records.STAGE)
    return "" if record is None else str(record["stage"])


def federate(
    clients: int,
    values: int,
    rounds: int,
    drops: int,
    scratch: Path,
    finished: Any = None,
    neighbours: int = 0,
) -> Crowd:
    """Run one; FlheError where the model is not what it should be."""
    crowd = Crowd(clients, values, drops)
    warm_up()
    grid = _Counting(
        client_app(dropout),
        clients,
        run_config={"scheme": "sash", "nodes": clients, "drops": drops},
        node_config=lambda i: {
            "flhe-home": str(scratch / f"node-{i}"),
            "flhe-trust": "first-use",
            "flhe-server-reads": True,
        },
    )

    def note(report: RoundReport) -> None:
        crowd.rounds_s.append(report.round_s)
        crowd.survivors.append(report.survivors)
        if finished is not None:
            finished(report.round)

    began = time.monotonic()
    start = initial(values)
    strategy = sash_fedavg(
        clip=1.0,
        weighted=False,
        train_metrics=(),
        neighbours=neighbours,
        min_train_nodes=clients,
        min_evaluate_nodes=3,
        min_available_nodes=clients,
        fraction_evaluate=0.0,
        round_timeout=TIMEOUT_S,
        stage_timeout=TIMEOUT_S,
        connect_timeout=60.0,
        on_round=note,
    )
    try:
        result = strategy.start(grid, start, rounds)
    finally:
        grid.close()
    crowd.agreement_s = grid.first_round_at - began
    crowd.peak_bytes = resident("VmHWM")
    crowd.masking_bytes = max(grid.moved.values())
    crowd.upload_bytes = grid.upload_bytes
    crowd.error = _error(result.arrays, start, crowd, rounds)
    return crowd


def _error(arrays: Any, start: Any, crowd: Crowd, rounds: int) -> float:
    """Largest difference from the model that the survivors' steps make."""
    clients, step = crowd.clients, 0.0
    for round_ in range(1, rounds + 1):
        places = [drops_at(0, round_, i, clients, crowd.drops) for i in range(clients)]
        there = [i for i, place in enumerate(places) if place not in ("round", "answer")]
        step += float(np.mean([float(STEP) * (1 + i) for i in there]))
    worst = max(
        float(np.max(np.abs(arrays[name].numpy() - (start[name].numpy() + np.float64(step)))))
        for name in start
    )
    bits = most_bits(clients)
    if not worst <= rounds * (2.0 ** -(bits - 1) + 1e-6):
        raise FlheError(f"the model is off by {worst:.3g}: its sums were not the survivors'")
    return worst


def table(crowd: Crowd) -> Table:
    """What one federation took."""
    out = Table(title=f"SASH, {crowd.clients} clients, {crowd.values:,} values", show_header=False)
    out.add_column("")
    out.add_column("", justify="right")
    plain = 4 * crowd.values
    for name, value in (
        ("dropouts a round", f"{crowd.drops}"),
        ("updates in the sums", ", ".join(map(str, crowd.survivors))),
        ("key agreement, once", f"{crowd.agreement_s:.1f} s"),
        ("a round", f"{min(crowd.rounds_s):.1f} to {max(crowd.rounds_s):.1f} s"),
        ("peak memory, all of them", f"{crowd.peak_bytes / 2**30:.2f} GiB"),
        ("upload, a client", f"{crowd.upload_bytes / plain:.3f}x float32"),
        ("masking-key agreement, a client", f"{crowd.masking_bytes / 1e3:.0f} kB"),
        ("largest error of the model", f"{crowd.error:.1e}"),
    ):
        out.add_row(name, value)
    return out


def main(
    clients: Annotated[int, typer.Option(help="Clients.")] = 200,
    values: Annotated[int, typer.Option(help="Values in the model.")] = 100_000,
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 3,
    drops: Annotated[float, typer.Option(help="Share of clients that drop out of a round.")] = 0.1,
    neighbours: Annotated[
        int, typer.Option(help="Clients among whom each shares its seed (SASH+); 0: all.")
    ] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the results to FILE.")
    ] = None,
) -> None:
    """Run a federation of many clients in this process."""
    with (
        quiet(),
        tempfile.TemporaryDirectory(prefix="flhe-crowd-") as scratch,
        progress(Console(stderr=True)) as advance,
    ):
        crowd = federate(
            clients,
            values,
            rounds,
            round(drops * clients),
            Path(scratch),
            lambda n: advance(n, rounds, f"round {n} done"),
            neighbours,
        )
    if json_file is not None:
        write_json(json_file, json.dumps({"machine": machine(), "crowd": asdict(crowd)}, indent=2))
    Console().print(table(crowd))


if __name__ == "__main__":
    typer.run(main)
