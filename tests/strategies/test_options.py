"""Names and types that editors are shown are those that the strategies take, and no others."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from typing import Any, Unpack, get_type_hints

import pytest
import torch
from flwr.app import MetricRecord
from flwr.serverapp.strategy import FedAvg

from flhe import strategies
from flhe.coding.select import Select
from flhe.errors import ConfigError, MisfitError
from flhe.schemes.flashe.scheme import Flashe
from flhe.strategies import HEStrategy, EsaflFedAvg, FlasheFedAvg
from flhe.strategies.options import (
    AverageOptions,
    FedAvgOptions,
    RunOptions,
    StrategyOptions,
    check_names,
)
from flhe.training.client_optimizer import ClientOptimizer
from flhe.training.terms import Terms

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
        strategies.SashFedAvg(xyz=1)
    check_names(strategies.SashFedAvg, ["unmask", "retries", "weighted_by_key"])


OF_FEDAVG: dict[str, Any] = {
    "fraction_evaluate": 0.5,
    "min_train_nodes": 3,
    "min_evaluate_nodes": 1,
    "min_available_nodes": 4,
    "weighted_by_key": "n",
    "arrayrecord_key": "a",
    "configrecord_key": "c",
    "train_metrics_aggr_fn": lambda contents, key: MetricRecord(),
    "evaluate_metrics_aggr_fn": lambda contents, key: MetricRecord(),
}


@pytest.mark.parametrize("alias", [HEStrategy, *ALIASES])
def test_what_is_shown_is_taken(alias: Alias) -> None:
    assert OF_FEDAVG.keys() == FedAvgOptions.__annotations__.keys() - {"fraction_train"}
    own = {**required(alias), "noise": None} if alias in ALIASES else {}
    made = alias(round_timeout=7.0, fraction_train=1.0, **OF_FEDAVG, **own)
    assert (made.round_timeout, made.terms.arrays_key, made.terms.weight_key) == (7.0, "a", "n")
    for name, value in OF_FEDAVG.items():
        assert getattr(made, name) == value


def test_arguments_of_an_alias_are_terms() -> None:
    how: dict[str, Any] = {"bits": 12, "clip": {"*": 0.5}, "max_examples": 77, "weighted": False}
    made = FlasheFedAvg(**how, masking="single", train_metrics=("loss",), fraction_train=0.5)
    assert made.terms == Terms(Flashe(), 12, {"*": 0.5}, 77, False, "single", ("loss",))
    assert made.fraction_train == 0.5
    assert FlasheFedAvg().terms == Terms()


EQUAL: dict[str, Any] = {"weighted": False}
SGD = ClientOptimizer("sgd", 0.1)
AMSGRAD = torch.optim.Adam([torch.zeros(1)], amsgrad=True)
CANNOT: list[tuple[Alias, dict[str, Any], str]] = [
    (FlasheFedAvg, {"bits": 1}, "bits"),
    (FlasheFedAvg, {"min_replies": 1}, "a sum of one is that client's update"),
    (FlasheFedAvg, {"round_timeout": 0}, "round_timeout=0: must be positive and finite"),
    (FlasheFedAvg, {"round_timeout": math.inf}, "round_timeout=inf"),
    (FlasheFedAvg, {"stage_timeout": -1}, "stage_timeout=-1"),
    (FlasheFedAvg, {"connect_timeout": math.nan}, "connect_timeout=nan"),
    (strategies.SashFedAvg, {"select": Select(0.1), **EQUAL}, "reads the sum"),
    (strategies.BatchCryptFedAvg, {"key_bits": 1024}, "3072 has 128 bits"),
    (strategies.BatchCryptFedAvg, {"advance": 1}, "advance"),
    (strategies.BatchCryptFedAvg, {"optimizer": "adam"}, "torch"),
    (strategies.BatchCryptFedAvg, {"optimizer": AMSGRAD}, "amsgrad"),
    (EsaflFedAvg, {"fraction_train": 0.5}, r"fraction_train=0.5.*keys"),
    (EsaflFedAvg, {"keys": "weekly"}, "one of joint, round, dealt"),
    (
        strategies.EsaflFedAvg,
        {"optimizer": SGD, "keys": "round"},
        "give clip as a number",
    ),
]


@pytest.mark.parametrize(("alias", "how", "why"), CANNOT)
def test_what_cannot_work_is_refused_at_construction(
    alias: Alias, how: dict[str, Any], why: str
) -> None:
    with pytest.raises((ConfigError, MisfitError), match=why):
        alias(**how)
