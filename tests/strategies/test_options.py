"""Names and types that editors are shown are those that the strategies take, and no others."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, Unpack, get_type_hints

import pytest
from flwr.serverapp.strategy import FedAvg

from flhe import strategies
from flhe.strategies import HEStrategy
from flhe.strategies.options import (
    AverageOptions,
    FedAvgOptions,
    RunOptions,
    StrategyOptions,
    check_names,
)
from flhe.training.client_optimizer import ClientOptimizer

ALIASES = [
    getattr(strategies, name) for name in strategies.__all__ if name.endswith(("avg", "sgd"))
]
Alias = Callable[..., HEStrategy]


def hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Types by name of all that can be given by keyword, but for **."""
    found = get_type_hints(function)
    parameters = inspect.signature(function).parameters.values()
    return {
        p.name: found[p.name]
        for p in parameters
        if p.kind is not inspect.Parameter.VAR_KEYWORD and p.name != "self"
    }


def required(alias: Alias) -> dict[str, Any]:
    """Arguments without which an alias cannot be called."""
    return {"optimizer": ClientOptimizer("sgd", 0.1)} if alias.__name__.endswith("sgd") else {}


def test_every_alias_is_held() -> None:
    assert len(ALIASES) == 7


def test_fedavg_takes_what_its_options_say() -> None:
    assert get_type_hints(FedAvgOptions) == hints(FedAvg.__init__)


def test_a_strategy_takes_what_its_options_say() -> None:
    own = {name: kind for name, kind in hints(HEStrategy.__init__).items() if name != "terms"}
    assert get_type_hints(RunOptions) == hints(FedAvg.__init__) | own
    last = inspect.signature(HEStrategy.__init__, eval_str=True).parameters["fedavg"]
    assert last.annotation == Unpack[FedAvgOptions]


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_shows_all_that_it_hands_on(alias: Alias) -> None:
    signature = inspect.signature(alias, eval_str=True)
    own = signature.parameters.keys() - {"strategy"}
    kind = StrategyOptions if "optimizer" in own else AverageOptions
    assert signature.parameters["strategy"].annotation == Unpack[kind]
    assert own.isdisjoint(kind.__annotations__)  # a name that is there twice has two meanings
    assert f"`{kind.__name__}`" in str(alias.__doc__)


@pytest.mark.parametrize("alias", ALIASES)
@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("round_timout", "round_timeout"), ("fraction_trian", "fraction_train"), ("bit", "bits")],
)
def test_a_misspelled_argument_is_answered_with_the_right_one(
    alias: Alias, wrong: str, meant: str
) -> None:
    said = f"{alias.__name__}() takes no argument {wrong!r}: did you mean {meant!r}?"
    with pytest.raises(TypeError, match=re.escape(said)):
        alias(**required(alias), **{wrong: 1})


def test_a_name_like_no_other_is_answered_with_all() -> None:
    with pytest.raises(
        TypeError, match=r"'xyz': choose from unmask, .*fraction_train, .*bits, .*noise"
    ):
        strategies.sash_fedavg(xyz=1)
    check_names(strategies.sash_fedavg, ["unmask", "retries", "weighted_by_key"])


@pytest.mark.parametrize("alias", ALIASES)
def test_what_is_shown_is_taken(alias: Alias) -> None:
    made = alias(**required(alias), round_timeout=7.0, weighted_by_key="n", noise=None)
    assert (made.round_timeout, made.weighted_by_key) == (7.0, "n")
