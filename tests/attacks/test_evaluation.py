"""A server that has sites evaluate models of its choice.

The loss of models that differ in one weight gave one site's gradient; accuracies, which are k / n,
gave its example count.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from flhe.mods import records
from flhe.schemes.sealed import Sealed, to_bytes
from flhe.training.kind import EVALUATION
from tests.mods.harness import App, Group, Replies, Site, answer, arrays, refused, update
from tests.mods.masked import Masked
from tests.strategies.puppets import Puppets
from tests.strategies.test_he_strategy import run as run_flashe
from tests.strategies.test_sash_rounds import run as run_sash

TARGET = np.linspace(2, -1, 12, dtype=np.float32).reshape(3, 4)
EXAMPLES, RIGHT = 37, 23
CLAIMED = 1022


class Fits(App):
    """Its loss is how far the model is from what its patients say; it says how often it was right."""

    def content(self, message: Message) -> RecordDict:
        content = super().content(message)
        weights = records.to_numpy(message.content["arrays"])["w"]  # type: ignore[arg-type]
        loss = float(np.sum((weights - TARGET).astype(np.float64) ** 2))
        metrics: Any = content["metrics"]
        metrics.update({"num-examples": EXAMPLES, "loss": loss, "accuracy": RIGHT / EXAMPLES})
        return content


def heard(reply: Message, name: str) -> Any:
    """A metric that the server reads in a reply."""
    content = RecordDict() if reply.has_error() else reply.content
    found = [r[name] for r in content.values() if isinstance(r, MetricRecord) and name in r]
    return found[0] if found else None


@pytest.fixture
def read(tmp_path: Path) -> Masked:
    """A group whose server reads the sums, so it chooses the model."""
    return Masked(tmp_path).agree()


def test_chosen_models_tell_no_gradient(read: Masked) -> None:
    """Losses of twelve models and their neighbours did; cosine 1.0 from 24 messages."""
    site = read.sites[0]
    site.app = Fits()
    for i, step in itertools.product(range(12), (0.5, -0.5)):
        chosen = arrays()
        chosen["w"].reshape(-1)[i] += step
        extra = {"arrays": records.from_numpy(chosen)}
        assert heard(read.evaluate(site, base=0, extra=extra), "loss") is None
    assert len(site.app.seen) == 1


# --- one evaluation of one model ---


def test_a_model_is_evaluated_once(group: Group, site: Site) -> None:
    total = group.total()
    first = group.evaluate(site, total)
    again = group.evaluate(site, total)
    assert answer(again)["resent"] is True
    assert update(again).data.tobytes() == update(first).data.tobytes()
    evaluated = len(site.app.seen)
    group.renew()
    # Another key, under which it could be added up once more.
    refused(group.evaluate(site), CLAIMED)
    assert len(site.app.seen) == evaluated


def test_a_model_that_was_left_behind_is_not_evaluated(group: Group, site: Site) -> None:
    total = group.total()
    update(group.ask(site, round_=2, sums=[total]))
    refused(group.evaluate(site, total), CLAIMED)


def test_another_model_of_the_same_round(read: Masked) -> None:
    site = read.sites[0]
    other = {name: np.asarray(a + a.dtype.type(1)) for name, a in arrays().items()}
    answer(read.evaluate(site, base=3))
    for base in (3, 2):
        extra = {"arrays": records.from_numpy(other)}
        refused(read.evaluate(site, base=base, extra=extra), CLAIMED)


def test_no_evaluation_makes_a_signed_round_anew(tmp_path: Path) -> None:
    """It stands in the place of the signature, and in a new epoch the round had a second set."""
    group = Masked(tmp_path, 4, rounds=9).agree().uploaded()
    everybody = range(4)
    group.answers(everybody, group.signatures(everybody, everybody))
    for site in group.sites:
        update(group.ask(site, "evaluate", "evaluate", base=1))
    group.renew()
    for rank in everybody:
        refused(group.upload(rank), 1012)


def test_nobody_evaluates_where_the_contract_says_so(tmp_path: Path) -> None:
    group = Group(tmp_path, evaluate_share=0.0).agree()
    refused(group.evaluate(group.sites[0], group.total()), 1014)


# --- what is told of the sum ---


def evaluations(group: Group) -> list[Sealed]:
    total = group.total()
    return [update(group.evaluate(site, total)) for site in group.sites]


def told(group: Group, site: Site, total: Sealed, of: int = 1) -> dict[str, Any] | None:
    reply = group.ask(site, "sync", evaluation=to_bytes(total))
    answer(reply)
    record: Any = reply.content.get(f"{records.EVALUATION}{of}")
    return None if record is None else dict(record)


def test_one_teller_tells_the_means_of_one_sum(four: Group) -> None:
    """Sums of all and of all but one would tell the last one's metrics."""
    for rank, site in enumerate(four.sites):
        site.app = App(examples=10 * (rank + 1), loss=1.0 + rank, accuracy=0.5)
    parts, teller = evaluations(four), four.sites[0]
    assert {part.slot.purpose for part in parts} == {EVALUATION.purpose}
    all_, fewer = four.total(parts), four.total(parts[:3])
    assert told(four, four.sites[1], all_) is None
    for total, means in ((all_, {"loss": 3.0, "accuracy": 0.5}), (fewer, None)) * 2:
        assert told(four, teller, total) == means
    assert "another result of round 1" in teller.log


def test_means_of_two_sums_tell_one_sites_metric(tmp_path: Path) -> None:
    """It works: docs/limits.md says so. One member opens the sum of all; with new keys another one
    opens that of the others, of the same round or the next."""
    group = Group(tmp_path, 5).agree()
    for rank, site in enumerate(group.sites):
        site.app = App(loss=1.0 + rank)
    victim = group.sites[0]
    every = heard(group.ask(victim, "sync", sums=[group.total()]), "loss")
    group.sites = group.sites[1:]
    group.renew()
    others = heard(group.ask(group.sites[0], "sync", sums=[group.total()]), "loss")
    assert 5 * every - 4 * others == victim.app.metrics["loss"]


def test_a_sum_of_too_few_or_that_was_altered_tells_nothing(four: Group) -> None:
    parts, teller = evaluations(four), four.sites[0]
    altered = four.total(parts)
    altered.data[0] ^= 1
    for total in (four.total(parts[:2]), altered):
        assert told(four, teller, total) is None
    answer(four.ask(teller, round_=2))  # and it trains on


def without_loss(content: RecordDict) -> RecordDict:
    del content["metrics"]["loss"]  # type: ignore[union-attr, arg-type]
    return content


OTHERS: dict[str, Callable[[Site], None]] = {
    "NaN": lambda site: setattr(site, "app", App(loss=math.nan, accuracy=0.5)),
    "missing": lambda site: setattr(site, "app", Replies(without_loss, accuracy=0.5)),
    "kept": lambda site: site.allow(flhe_metrics="accuracy"),
}


@pytest.mark.parametrize("how", OTHERS)
def test_a_metric_that_not_all_senders_report_has_no_mean(four: Group, how: str) -> None:
    """It would be the mean of the others: of one, where only one reports it."""
    for site in four.sites:
        site.app = App(accuracy=0.5)
    for site in four.sites[1:]:
        OTHERS[how](site)
    trained = four.total()
    replies = [four.evaluate(site, trained) for site in four.sites]
    assert not dict(replies[0].content[f"{records.MEANS}1"])
    total = four.total([update(reply) for reply in replies])
    assert told(four, four.sites[0], total) == {"accuracy": 0.5}


@pytest.mark.parametrize("examples", [0, -3])
def test_an_evaluation_without_examples_is_no_sender(four: Group, examples: int) -> None:
    """Its metrics have no weight: a sum with it would be the means of the others."""
    site = four.sites[1]
    total = four.total()
    site.app = App(examples=examples)
    refused(four.evaluate(site, total), 1029)
    site.app = App()
    update(four.evaluate(site, total))


# --- a whole run ---


@pytest.mark.parametrize("reader", ["clients", "server"])
def test_no_message_of_a_run_holds_one_sites_metrics(tmp_path: Path, reader: str) -> None:
    grid = Puppets(tmp_path, 4)
    grid.app.evaluated = lambda p: {"loss": 3.25 + p, "accuracy": (p + 1) / 7}
    if reader == "clients":
        done = run_flashe(grid, 2)
    else:
        _, done = run_sash(grid, 2)
    single = {3.25 + p for p in range(4)} | {(p + 1) / 7 for p in range(4)}
    for _, _, reply in grid.replies:
        for record in reply.content.values() if not reply.has_error() else ():
            if isinstance(record, (MetricRecord, ConfigRecord)):
                assert not single & {v for v in record.values() if isinstance(v, float)}
    assert set(done.evaluate_metrics_clientapp) == {1, 2}
