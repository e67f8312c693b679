"""Codecs as Flower mods: what the server receives of an update, alone, in any order, beside HEMod."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from flhe.coding.clip import Clip as ClipCodec
from flhe.coding.discrete_gaussian import DiscreteGaussian
from flhe.coding.permute import Permute
from flhe.coding.quantize import Quantize as QuantizeCodec
from flhe.coding.sparsify import TopK
from flhe.coding.weigh import Weigh
from flhe.errors import ConfigError, MisfitError
from flhe.mods import Clip, CodecMod, Quantize, Sparsify, records

SIZE = 1000
OLD = {"w": np.linspace(-1, 1, SIZE).astype(np.float32), "steps": np.array(7)}
CHANGE = np.random.default_rng(0).normal(0, 0.1, SIZE).astype(np.float32)


class Node:
    """One node's mods and state; its app changes `w` by CHANGE."""

    def __init__(self, *mods: Any) -> None:
        self.mods, self.change = mods, CHANGE
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 2, 1
        self.context = Context(1, 2, {}, RecordDict(), {})

    def _app(self, message: Message, _: Context) -> Message:
        arrays = records.to_numpy(message.content["arrays"])  # type: ignore[arg-type]
        new = {"w": arrays["w"] + self.change, "steps": np.asarray(arrays["steps"] + 1)}
        content = RecordDict({"arrays": records.from_numpy(new)})
        content["metrics"] = MetricRecord({"num-examples": 20})
        return Message(content, reply_to=message)

    def ask(self, kind: str = "train", arrays: Any = OLD) -> dict[str, NDArray[Any]]:
        call: Callable[[Message, Context], Message] = self._app
        for mod in reversed(self.mods):
            call = functools.partial(lambda mod, inner, *how: mod(*how, inner), mod, call)
        content = RecordDict({"arrays": records.from_numpy(arrays)})
        reply = call(Message(content, 2, kind), self.context)
        record = reply.content["arrays"]
        assert isinstance(record, ArrayRecord)
        return {name: array.copy() for name, array in records.to_numpy(record).items()}

    def sent(self, **how: Any) -> NDArray[np.float32]:
        """What the server sees of the change."""
        got = self.ask(**how)
        assert got["steps"] == 8  # integers are exact
        return np.asarray(got["w"] - OLD["w"], np.float32)


def test_sparsify_sends_the_largest_and_keeps_the_rest() -> None:
    node = Node(Sparsify(0.1))
    first = node.sent()
    chosen = np.flatnonzero(first)
    assert len(chosen) == 100
    assert np.abs(CHANGE[chosen]).min() >= np.sort(np.abs(CHANGE))[-100]
    assert first[chosen] == pytest.approx(CHANGE[chosen], abs=1e-6)
    total = first + sum(node.sent() for _ in range(39))
    # In the long run everything that was trained has been sent, but for what waits.
    assert np.abs(total - 40 * CHANGE).max() < 12 * np.abs(CHANGE).max()
    assert np.corrcoef(total, CHANGE)[0, 1] > 0.97


def test_what_a_node_has_not_sent_is_its_own() -> None:
    """One mod object serves many virtual nodes; what waits is in each node's own state."""
    mod = Sparsify(0.1)
    one, other = Node(mod), Node(mod)
    first = one.sent()
    assert np.array_equal(other.sent(), first)
    assert not np.array_equal(one.sent(), first)


def test_the_last_in_the_list_sees_the_update_first() -> None:
    both = Node(Clip(0.1), Sparsify(0.1)).sent()
    assert (np.count_nonzero(both), np.abs(both).max()) == (100, pytest.approx(0.1, abs=1e-6))
    first = np.flatnonzero(Node(Sparsify(0.1), Clip(0.1)).sent())  # all that was cut is equal
    assert len(first) == 100
    assert np.abs(CHANGE[first]).min() > 0.0999
    assert not np.array_equal(first, np.flatnonzero(both))
    three = Node(Quantize(8, bound=0.1), Clip(0.1), Sparsify(0.1)).sent()
    assert np.count_nonzero(three) <= 100
    assert np.abs(three * 1270 - np.rint(three * 1270)).max() < 1e-3  # 127 steps to the bound


@pytest.mark.parametrize(
    ("codecs", "error", "says"),
    [
        ([ClipCodec.history(), Weigh(1), QuantizeCodec(8)], ConfigError, "need HEMod"),
        ([TopK(0.1), Permute()], ConfigError, "need HEMod"),
        ([DiscreteGaussian(1.0, 1.0, "record", 0.5, 1000.0)], ConfigError, "dp_fedsgd"),
        ([QuantizeCodec(8)], MisfitError, "put Clip"),
        ([], ConfigError, "at least one"),
    ],
)
def test_what_only_a_sum_can_do_is_refused_when_built(
    codecs: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        CodecMod(*codecs)


def test_other_messages_pass_untouched() -> None:
    for kind in ("evaluate", "query"):
        assert Node(Sparsify(0.1)).sent(kind=kind) == pytest.approx(CHANGE, abs=1e-6)


def test_a_model_of_another_size_starts_anew() -> None:
    node = Node(Sparsify(0.1))
    node.sent()
    node.change = CHANGE[:500]
    smaller = {"w": OLD["w"][:500], "steps": np.array(7)}
    assert np.count_nonzero(node.ask(arrays=smaller)["w"] - OLD["w"][:500]) == 50


def test_before_hemod_it_is_refused() -> None:
    """There it would work on ciphertext: `tests/strategies/test_flower_parts.py` has all of that."""

    def sealed(message: Message, _: Context) -> Message:
        return Message(records.reply(step="update"), reply_to=message)

    node = Node(Sparsify(0.1))
    node._app = sealed  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=r"put HEMod\(\) first"):
        node.ask()
