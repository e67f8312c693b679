r"""BatchCrypt's three models at one's desk: seconds and bytes of a round, beside python-paillier's.

    python -m flhe.sim.batchcrypt_models [--key-bits 3072] [--figure models.png]

Nine clients, 16 bits a value, a key of 2048 bits, as in the paper. Who takes part:

- *a value each*: phe, one float a ciphertext, as FATE used it (Sec. 5): what the paper improves on;
- *batched*: phe on our batches, which is what the paper did to FATE;
- *flhe*: from float32 update to ciphertexts and back to the mean, fixed-base tables included.

phe is always projected from a sample of ciphertexts; our decryption is, too, beyond SAMPLE ciphertexts
(all of them are decrypted with --full). Projected seconds, and ratios of them, are marked with ~, in
the data by `projected`. Bytes of phe are counted: a number below n^2, and an exponent with a value.

What ratios are ratios of: ours are of work on one thread, a client's encryption and decryption and the
server's N - 1 additions, and of the bytes of an upload. The paper's are of a whole iteration, nine
machines of 16 processors that wait for networks and each other, and of FATE's traffic, whose encrypted
numbers carry their public key along. The row that does not mix the two effects is phe, batched: a value
each to batched is what batching brings, batched to flhe what our arithmetic does.

All take turns within each repeat, on one processor; the first turn is not counted.

Source: Zhang et al., "BatchCrypt", USENIX ATC 2020, Table 3, Sec. 6.3.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from flhe.errors import ConfigError, FlheError
from flhe.json_option import JsonFile, console, write_json
from flhe.sim import figures
from flhe.sim.batchcrypt_contender import BatchcryptContender
from flhe.sim.bench import PHASES, TOLERANCE, Progress, Times, machine, pinned
from flhe.sim.contenders import Contender, Setting
from flhe.sim.phe_peer import phe_peers

FORMAT, VERSION = "flhe batchcrypt models", 1
COHORT = 9
REPEATS = 3
SAMPLE = 2048
"""Ciphertexts of ours that are decrypted, where there are more."""

VALUES, BATCHED, OURS = "phe, a value each", "phe, batched", "flhe"


@dataclass(frozen=True, slots=True)
class Model:
    """One of the paper's models.

    Parameters
    ----------
    name : str
        Its name in Table 3.
    values : int
        Weights.
    paper_time, paper_traffic : float
        How many times less time and traffic an iteration took than with stock FATE (Sec. 6.3).
    """

    name: str
    values: int
    paper_time: float
    paper_traffic: float


MODELS = (
    Model("FMNIST", 101_770, 23.3, 66),
    Model("CIFAR", 1_250_000, 70.8, 71),
    Model("LSTM", 4_020_000, 92.8, 101),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a round takes.

    Parameters
    ----------
    name : str
        VALUES, BATCHED or OURS.
    encrypt_s, add_s, decrypt_s : Times
        Of one update, of one upload that is added, of the sum.
    upload_bytes : int
        What a client uploads; the sum that it downloads is as long.
    projected : tuple of str
        Phases whose seconds are projected from a sample.
    """

    name: str
    encrypt_s: Times
    add_s: Times
    decrypt_s: Times
    upload_bytes: int
    projected: tuple[str, ...]

    @property
    def work_s(self) -> float:
        """A client's encryption and decryption, the server's additions: seconds, minima added up."""
        return self.encrypt_s.min + (COHORT - 1) * self.add_s.min + self.decrypt_s.min


def measure(
    model: Model,
    key_bits: int,
    *,
    repeats: int = REPEATS,
    sample: int | None = SAMPLE,
    progress: Progress | None = None,
    done: tuple[int, int] = (0, 1),
) -> list[Cost]:
    """Measure one model: phe a value each, phe batched, ours.

    Parameters
    ----------
    model : Model
        How many values.
    key_bits : int
        Of all three.
    repeats : int
        Turns that count.
    sample : int or None
        Ciphertexts of ours that are decrypted at most; None for all.
    progress, done
        Receives `done` and what is going on.

    Raises
    ------
    ConfigError
        No repeats; phe or gmpy2 is not installed.
    FlheError
        A mean that is not the mean.
    """
    if repeats < 1:
        raise ConfigError(f"--repeats {repeats}: must be at least 1")

    def say(what: str) -> None:
        if progress is not None:
            progress(*done, f"{model.name}: {what}")

    say("phe, making a key")
    setting = Setting(model.values, COHORT)
    rng = np.random.default_rng(20)  # test data; keys and masks never come from here
    update = rng.standard_normal(model.values, np.float32) * np.float32(0.02)
    # Others' values are its own, reversed: other exponents, as phe meets them.
    updates = [update if j % 2 == 0 else update[::-1] for j in range(COHORT)]
    contenders: dict[str, Contender] = dict(
        zip((VALUES, BATCHED), phe_peers(setting, updates, key_bits), strict=True)
    )
    say("flhe, making a key and an update")
    ours = contenders[OURS] = BatchcryptContender(setting, updates, key_bits)
    slots = ours.scheme.batch
    batches = slots.batches(model.values)
    opening, factor = ours, 1.0
    if sample is not None and batches > sample:
        part = Setting(sample * slots.per, COHORT)
        opening = BatchcryptContender(part, [update[: part.values]] * COHORT, key_bits)
        factor = batches / sample

    times: dict[str, dict[str, list[float]]] = {
        name: {phase: [] for phase in PHASES} for name in contenders
    }
    for turn in range(repeats + 1):
        for name, contender in contenders.items():
            for phase in PHASES:
                say(f"{name}, {phase}, turn {turn} of {repeats}")
                whose = opening if (name, phase) == (OURS, "decrypt") else contender
                work = getattr(whose, phase)
                began = time.perf_counter()
                work()
                if turn > 0:  # the first turn warms up
                    times[name][phase].append(time.perf_counter() - began)
    found = []
    for name, contender in contenders.items():
        error = (opening if name == OURS else contender).max_error()
        if error is None or not error <= TOLERANCE:
            raise FlheError(f"{name}: its mean is not the mean; its times mean nothing")
        projection = getattr(contender, "projection", 1.0)
        scale = dict.fromkeys(PHASES, projection)
        scale["decrypt"] *= factor if name == OURS else 1.0
        taken = [_times(times[name][phase], scale[phase]) for phase in PHASES]
        size = contender.upload_bytes
        assert size is not None
        marks = tuple(phase for phase in PHASES if scale[phase] != 1.0)
        found.append(Cost(name, taken[0], taken[1], taken[2], size, marks))
    return found


def _times(seconds: Sequence[float], factor: float) -> Times:
    found = Times.of(seconds)
    assert found is not None
    return found.projected(factor)


Results = dict[Model, list[Cost]]


def ratios(costs: Sequence[Cost]) -> dict[str, float]:
    """How many times ours everybody else's work and bytes are."""
    by_name = {cost.name: cost for cost in costs}
    ours = by_name.pop(OURS)
    out = {}
    for name, cost in by_name.items():
        out[f"work: {name} / {OURS}"] = cost.work_s / ours.work_s
        out[f"encrypt: {name} / {OURS}"] = cost.encrypt_s.min / ours.encrypt_s.min
        out[f"decrypt: {name} / {OURS}"] = cost.decrypt_s.min / ours.decrypt_s.min
        out[f"bytes: {name} / {OURS}"] = cost.upload_bytes / ours.upload_bytes
    return out


def to_data(found: Results, key_bits: int) -> dict[str, Any]:
    """What was measured and how, as JSON values."""
    return {
        "machine": machine(),
        "cohort": COHORT,
        "key_bits": key_bits,
        "unit": "seconds on one processor; add_s is of one upload; `projected` names the phases whose "
        "seconds are projected from a sample",
        "work": "a client's encryption and decryption, the server's N - 1 additions; sum of minima",
        "paper": "an iteration of stock FATE to one with BatchCrypt: time, and traffic (Sec. 6.3)",
        "models": [
            {
                **asdict(model),
                "costs": [{**asdict(cost), "work_s": cost.work_s} for cost in costs],
                "ratios": ratios(costs),
            }
            for model, costs in found.items()
        ],
    }


def command(
    key_bits: Annotated[int, typer.Option(help="Length of the modulus: 2048 or 3072.")] = 2048,
    repeats: Annotated[int, typer.Option(help="Turns that count.")] = REPEATS,
    only: Annotated[
        list[str] | None, typer.Option("--model", help="FMNIST, CIFAR or LSTM; all by default.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Decrypt everything of ours.")] = False,
    json_file: JsonFile = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--figure", metavar="FILE.png", help="Draw a figure; its data goes beside it."
        ),
    ] = None,
) -> None:
    """Measure BatchCrypt's three models beside python-paillier."""
    from flhe.sim.batchcrypt_plot import plot, table
    from flhe.sim.bench_table import progress

    try:
        models = [m for m in MODELS if not only or m.name.lower() in {n.lower() for n in only}]
        if not models:
            raise ConfigError(f"--model: choose from {', '.join(m.name for m in MODELS)}")
        if picture is not None:
            figures.check(picture)
        found: Results = {}
        with pinned(1), progress(Console(stderr=True)) as advance:
            for i, model in enumerate(models):
                found[model] = measure(
                    model,
                    key_bits,
                    repeats=repeats,
                    sample=None if full else SAMPLE,
                    progress=advance,
                    done=(i, len(models)),
                )
        data = to_data(found, key_bits)
        if json_file is not None:
            write_json(json_file, json.dumps(data, indent=2))
        if picture is not None:
            figures.save_data(picture, FORMAT, VERSION, data)
            plot(found, key_bits, picture)
    except FlheError as error:
        typer.echo(f"flhe: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None
    console(json_file, 110).print(table(found, key_bits))


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(command)
    app()
