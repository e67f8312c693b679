"""What an app answers to a query, and what is no answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict

from flhe.errors import PolicyError, ReplyError
from flhe.mods.app import App
from flhe.mods.app_state import AppState
from flhe.training.query import Query


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
