"""Names and types that editors are shown are those that the strategies take, and no others."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Unpack, get_type_hints

import pytest
import torch
from flwr.app import MetricRecord
from flwr.serverapp.strategy import FedAvg

from flhe import strategies
from flhe.coding.select import Select
from flhe.coding.update import update_codec
from flhe.errors import ConfigError, MisfitError
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.flashe.scheme import Flashe
from flhe.strategies import EsaflFedAvg, FlasheFedAvg, HEStrategy, SchemeFedAvg
from flhe.strategies.options import (
    CODING,
    FedAvgOptions,
    RunOptions,
    RunSettings,
    StrategyOptions,
    TrainingOptions,
    check_names,
)
from flhe.training.optimizer import Optimizer
from flhe.training.terms import Terms

ALIASES: list[type[SchemeFedAvg]] = [
    getattr(strategies, name) for name in strategies.__all__ if name.endswith("FedAvg")
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
    return {"scheme": Flashe()} if alias is SchemeFedAvg else {}


def test_fedavg_takes_what_its_options_say() -> None:
    assert get_type_hints(FedAvgOptions) == hints(FedAvg.__init__)


def test_a_strategy_takes_what_its_options_say() -> None:
    own = hints(HEStrategy.__init__)
    assert {"scheme", "codec"} <= own.keys()
    shown = {name: kind for name, kind in own.items() if name not in ("scheme", "codec")}
    run = hints(FedAvg.__init__) | hints(RunSettings.__init__)
    assert get_type_hints(RunOptions) == run
    assert get_type_hints(TrainingOptions) == run | shown
    last = inspect.signature(HEStrategy.__init__, eval_str=True).parameters["options"]
    assert last.annotation == Unpack[RunOptions]


def test_a_codec_takes_what_its_options_say() -> None:
    known = get_type_hints(StrategyOptions)
    assert {name: known[name] for name in CODING} == hints(update_codec)


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_shows_all_that_it_hands_on(alias: type[SchemeFedAvg]) -> None:
    signature = inspect.signature(alias, eval_str=True)
    own = signature.parameters.keys() - {"options"}
    assert signature.parameters["options"].annotation == Unpack[StrategyOptions]
    assert own.isdisjoint(
        StrategyOptions.__annotations__
    )  # one that is there twice means two things
    assert "`StrategyOptions`" in str(inspect.getmodule(alias).__doc__)


@pytest.mark.parametrize("alias", [alias for alias in ALIASES if alias is not SchemeFedAvg])
def test_an_alias_has_the_parameters_of_its_scheme(alias: type[SchemeFedAvg]) -> None:
    scheme = alias().terms.scheme
    own = inspect.signature(alias, eval_str=True).parameters
    for field in fields(scheme):
        assert (own[field.name].default, own[field.name].kind) == (
            field.default,
            inspect.Parameter.KEYWORD_ONLY,
        )
    assert hints(alias.__init__) == hints(type(scheme).__init__)
    assert scheme == type(scheme)()


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


class Mine(FlasheFedAvg):
    def __init__(self, *, twice: bool = False, **others: Any) -> None:
        super().__init__(masking="single", **others)
        self.twice = twice


class Bare(FlasheFedAvg):
    def __init__(self) -> None:
        super().__init__(bits=12)


def test_an_alias_may_be_the_base_of_another_strategy() -> None:
    made = Mine(twice=True, bits=12)
    assert (made.twice, made.terms.scheme, made.terms.bits) == (True, Flashe("single"), 12)
    assert Bare().terms.bits == 12
    with pytest.raises(TypeError, match=re.escape("FlasheFedAvg() takes no argument 'bitz'")):
        Mine(bitz=12)


def test_a_name_like_no_other_is_answered_with_all() -> None:
    with pytest.raises(
        TypeError, match=r"'xyz': choose from unmask, .*fraction_train, .*bits, .*permute"
    ):
        strategies.SashFedAvg(xyz=1)  # type: ignore[call-arg]
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
    assert made.settings.round_timeout == 7.0
    assert (made.terms.arrays_key, made.terms.weight_key) == ("a", "n")
    for name, value in OF_FEDAVG.items():
        assert getattr(made, name) == value


def test_arguments_of_an_alias_are_terms() -> None:
    how: dict[str, Any] = {"bits": 12, "clip": {"*": 0.5}, "max_examples": 77, "weighted": False}
    made = FlasheFedAvg(**how, masking="single", train_metrics=("loss",), fraction_train=0.5)
    assert made.terms == Terms(Flashe("single"), update_codec(**how), metrics=("loss",))
    assert made.fraction_train == 0.5
    assert FlasheFedAvg().terms == HEStrategy().terms == Terms()


CLEAR: dict[str, Any] = {"select": 0.5}


@pytest.mark.parametrize(
    ("alias", "how", "codec"),
    [
        (strategies.SashFedAvg, {}, {"bits": 0}),
        (strategies.SashFedAvg, {"bits": 12}, {"bits": 12}),
        (strategies.BatchCryptFedAvg, {}, {"clip": "exchange"}),
        (strategies.BatchCryptFedAvg, {"clip": 0.5}, {"clip": 0.5}),
        (strategies.FedmlHeFedAvg, {}, {}),
        (strategies.FedmlHeFedAvg, CLEAR, {"weighted": False}),
        (strategies.FedmlHeFedAvg, {"select": Select(0.5, rest="drop")}, {}),
    ],
)
def test_what_an_alias_takes_where_nobody_says(
    alias: Alias, how: dict[str, Any], codec: dict[str, Any]
) -> None:
    assert alias(**how).terms.codec == update_codec(**codec)


def test_a_strategy_of_any_scheme_and_codec() -> None:
    scheme, codec = Esafl(keys="round"), update_codec(bits=12)
    made = HEStrategy(scheme, codec, min_train_nodes=3)
    assert (made.terms.scheme, made.terms.codec) == (scheme, codec)
    assert SchemeFedAvg(scheme, bits=12).terms == made.terms
    default = HEStrategy(strategies.SashFedAvg().terms.scheme).terms
    assert default == strategies.SashFedAvg().terms


EQUAL: dict[str, Any] = {"weighted": False}
SGD = Optimizer("sgd", lr=0.1)
AMSGRAD = torch.optim.Adam([torch.zeros(1)], amsgrad=True)
CANNOT: list[tuple[Alias, dict[str, Any], str]] = [
    (FlasheFedAvg, {"bits": 1}, "bits"),
    (FlasheFedAvg, {"top_k": "a"}, "top_k='a': must be a share"),
    (FlasheFedAvg, {"top_k": True}, "top_k=True: must be a share"),
    (FlasheFedAvg, {"min_replies": 1}, "a sum of one is that client's update"),
    (FlasheFedAvg, {"round_timeout": 0}, "round_timeout=0: must be positive and finite"),
    (FlasheFedAvg, {"round_timeout": math.inf}, "round_timeout=inf"),
    (FlasheFedAvg, {"stage_timeout": -1}, "stage_timeout=-1"),
    (FlasheFedAvg, {"connect_timeout": math.nan}, "connect_timeout=nan"),
    *(
        (FlasheFedAvg, {name: count}, f"{name}=.*: must be an integer, 0 or more")
        for name in ("retries", "patience", "rekey_every", "checkpoint_every")
        for count in (-1, 1.5, True)
    ),
    (strategies.SashFedAvg, {"select": Select(0.1), **EQUAL}, "reads the sum"),
    (strategies.BatchCryptFedAvg, {"key_bits": 1024}, "3072 has 128 bits"),
    (strategies.BatchCryptFedAvg, {"advance": 1}, "advance"),
    (strategies.BatchCryptFedAvg, {"optimizer": "adam"}, "torch"),
    (strategies.BatchCryptFedAvg, {"optimizer": AMSGRAD}, "amsgrad"),
    (EsaflFedAvg, {"keys": "joint", "fraction_train": 0.5}, r"fraction_train=0.5.*keys"),
    (EsaflFedAvg, {"keys": "weekly"}, "one of round, joint, dealt"),
    (
        strategies.EsaflFedAvg,
        {"optimizer": SGD, "keys": "round", "clip": "exchange"},
        "give clip as a number",
    ),
]


@pytest.mark.parametrize(("alias", "how", "why"), CANNOT)
def test_what_cannot_work_is_refused_at_construction(
    alias: Alias, how: dict[str, Any], why: str
) -> None:
    with pytest.raises((ConfigError, MisfitError), match=why):
        alias(**how)
