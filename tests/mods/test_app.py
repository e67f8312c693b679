"""What an app answers to a query, and what is no answer; its time; metrics that no sum resolves."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from flhe.errors import PolicyError, ReplyError
from flhe.mods import training
from flhe.mods.app import App
from flhe.mods.app_state import AppState
from flhe.training.contract import Contract
from flhe.training.model import Model
from flhe.training.query import Query
from tests.mods.harness import Group, Site, arrays, update


@pytest.mark.parametrize(
    "answer", [ArrayRecord(), MetricRecord({"n": 1}), {"a": np.zeros(1)}, None], ids=type
)
def test_a_query_is_answered_with_arrays(answer: Any) -> None:
    of = Context(1, 2, {}, RecordDict(), {})
    queries = {"q": lambda *_: answer}
    app = App(of, lambda *_: pytest.fail("the app trains"), AppState(of), queries=queries)
    with pytest.raises(ReplyError, match="at least one array"):
        app.answer(Query.of("q", {}))
    with pytest.raises(PolicyError, match="answers no query 'p'"):
        app.answer(Query.of("p", {}))


@pytest.mark.parametrize("how", ["as it came", "ours"])
def test_the_time_of_an_app_counts_once(how: str) -> None:
    """Both for the model of a federation, and for an app's own message (MaskingKeyMod)."""
    of = Context(1, 2, {}, RecordDict(), {})

    def slow(message: Message, _: Context) -> Message:
        time.sleep(0.05)
        return Message(RecordDict(), reply_to=message)

    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    app, began = App(of, slow, AppState(of)), time.perf_counter()
    if how == "ours":
        app.evaluate(Contract(), Model.initial(arrays()))
    else:
        app.pass_on(Message(RecordDict(), 1, "train"))
    assert 0.05 <= app.seconds <= time.perf_counter() - began


def test_what_an_app_leaves_while_it_makes_the_first_model_is_forgotten() -> None:
    of = Context(1, 2, {}, RecordDict(), {})

    def make(context: Context) -> ArrayRecord:
        context.state["seen"] = MetricRecord({"n": 1})
        return ArrayRecord([np.zeros(1)])

    app = App(of, lambda *_: pytest.fail("the app trains"), AppState(of), make)
    assert len(app.initial()) == 1
    assert "seen" not in of.state


@pytest.mark.parametrize(
    ("loss", "says"),
    [(1e-4, "steps of 2**-16"), (40_000.0, "has no mean"), (0.0, ""), (0.5, ""), (-2.5, "")],
)
def test_a_metric_that_the_sum_does_not_resolve_is_told_here_alone(
    group: Group, site: Site, loss: float, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    training.say_once.cache_clear()
    site.app.metrics = {"loss": loss}
    reply = group.ask(site)
    assert update(reply).senders
    assert ("metric 'loss'" in caplog.text) == bool(says)
    assert says in caplog.text
    assert str(loss) not in caplog.text or not says
