"""One round of a very large model under FedML-HE: each role in a process of its own, and what it holds.

    python -m flhe.sim.fedml_large --values 110000000 [--select 0.1]

A client encodes and encrypts as in a federation, from the model that it starts from and the one that it
trained; the server adds up; a reader opens the sum and applies its mean. Bytes between them go through
files, as they would go through a network. Weights are made up; the mean is checked.
"""

from __future__ import annotations

import json
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from flhe.coding.select import Select
from flhe.keys.roles import new_pair
from flhe.keys.roster import Member, Roster
from flhe.keys.states import Epoch
from flhe.rounds.model import Model
from flhe.rounds.session import Session
from flhe.rounds.terms import Terms
from flhe.schemes.base import Scheme
from flhe.sealed import Sealed

COHORT = 3
LAYERS = 12
STEP = np.float32(1 / 64)


app = typer.Typer(pretty_exceptions_enable=False)


@app.command()
def main(
    values: Annotated[int, typer.Option(help="Values of the model.")] = 110_000_000,
    select: Annotated[float, typer.Option(help="Share that is encrypted.")] = 1.0,
    role: Annotated[str, typer.Option(hidden=True)] = "",
    place: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a round, and show what each role took."""
    if role and place is not None:
        typer.echo(json.dumps(_measured(role, place, values, select)))
        return
    out = Table(title=f"{values:,} values, {select:g} of them encrypted, {COHORT} clients")
    for heading in ("", "seconds", "peak memory", "bytes a value"):
        out.add_column(heading, justify="right" if heading else "left")
    with tempfile.TemporaryDirectory(prefix="flhe-large-") as name:
        (Path(name) / "pair").write_bytes(b"".join(_pair(select)))
        for one in ("client 0", "client 1", "client 2", "server", "reader"):
            found = _spawn(one, Path(name), values, select)
            size = "" if found["bytes"] is None else f"{found['bytes'] / values:.3f}"
            held = f"{found['peak'] / 2**30:.2f} GiB"
            out.add_row(one, f"{found['seconds']:.1f}", held, size)
    Console().print(out)


def _pair(select: float) -> tuple[bytes, bytes]:
    public, secret = new_pair(_terms(select).for_cohort(COHORT), secrets.token_bytes)
    return len(public).to_bytes(4, "big") + public, secret


def _spawn(role: str, place: Path, values: int, select: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "flhe.sim.fedml_large", "--values", str(values)]
    command += ["--select", str(select), "--role", role, "--place", str(place)]
    found: dict[str, Any] = json.loads(subprocess.check_output(command, text=True))  # noqa: S603
    return found


def _terms(select: float) -> Terms:
    part = Select(select, "random")
    return Terms("fedml-he", weighted=False, metrics=(), select=part)


def _session(place: Path, rank: int, model: Model, select: float) -> Session:
    data = (place / "pair").read_bytes()
    start = 4 + int.from_bytes(data[:4], "big")
    keys = tuple(bytes([i + 1]) * 32 for i in range(COHORT))
    roster = Roster(tuple(Member(f"site-{i}", key) for i, key in enumerate(keys)), 0, 2, ("*",))
    # All of it is made up but for the key pair: nothing here protects anybody's data.
    epoch = Epoch(
        id=bytes(16),
        number=1,
        run_id=1,
        roster=roster,
        members=keys,
        rank=rank,
        group_key=bytes(32),
        pair_keys=tuple(b"" if i == rank else bytes(32) for i in range(COHORT)),
        scheme_public=data[4:start],
        scheme_secret=data[start:],
    )
    return Session(epoch, _terms(select), model.layout)


def _model(values: int) -> Model:
    size = -(-values // LAYERS)
    sizes = [min(size, values - at) for at in range(0, values, size)]
    arrays = {f"layer{i}": np.full(n, 0.25, np.float32) for i, n in enumerate(sizes)}
    for array in arrays.values():
        array.flags.writeable = False
    return Model.initial(arrays)


def _measured(role: str, place: Path, values: int, select: float) -> dict[str, Any]:
    began = time.perf_counter()
    size = None
    if role == "server":
        size = _add(place, values, select)
    elif role == "reader":
        _open(place, values, select)
    else:
        size = _send(place, int(role.split()[1]), values, select)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    return {"seconds": time.perf_counter() - began, "peak": peak, "bytes": size}


def _send(place: Path, rank: int, values: int, select: float) -> int:
    model = _model(values)
    session = _session(place, rank, model, select)
    trained = {name: array + STEP * (rank + 1) for name, array in model.arrays().items()}
    digest = session.digest(model)
    slot = session.slot(model, 1, 0, digest=digest)
    sealer = session.sealer(model)
    encoded = session.encode(model, trained, 1, {}, digest)
    del trained
    sealed = session.seal(sealer, encoded, slot, lambda *_: None)
    _write(place / f"part-{rank}", sealed)
    return sealed.data.size


def _add(place: Path, values: int, select: float) -> int:
    layout = _model(values).layout
    data = (place / "pair").read_bytes()
    public = data[4 : 4 + int.from_bytes(data[:4], "big")]
    terms = _terms(select)
    scheme: Scheme = terms.selective(terms.for_cohort(COHORT, public), layout)
    total: Sealed | None = None
    for rank in range(COHORT):
        total = scheme.add(total, _read(place / f"part-{rank}"))
    assert total is not None
    total = scheme.close(total)
    _write(place / "total", total)
    return total.data.size


def _open(place: Path, values: int, select: float) -> None:
    model = _model(values)
    session = _session(place, 0, model, select)
    after, _ = session.open(model, _read(place / "total"), lambda *_: None)
    for array in after.masters.values():
        off = np.abs(array - np.float32(0.25) - 2 * STEP).max()
        if not off < 1e-4:
            raise SystemExit(f"the mean is off by {off}")


def _write(path: Path, sealed: Sealed) -> None:
    header = sealed.header()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(4, "big") + header)
        file.writelines(sealed.body())


def _read(path: Path) -> Sealed:
    with path.open("rb") as file:
        header = file.read(int.from_bytes(file.read(4), "big"))
        return Sealed.from_parts(header, np.fromfile(file, np.uint8), floats=0)


if __name__ == "__main__":
    app()
