"""Names and types that editors are shown are those that the strategies take, and no others."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Unpack, get_type_hints

import pytest
from flwr.serverapp.strategy import FedAvg

from flhe import strategies
from flhe.coding.select import Select
from flhe.coding.update import update_codec
from flhe.errors import ConfigError, MisfitError
from flhe.strategies import (
    EsaflFedAvg,
    FlasheFedAvg,
    HEStrategy,
    MaskingKeyAgreement,
    SchemeFedAvg,
    SecureSum,
)
from flhe.strategies.options import (
    CODING,
    RunOptions,
    RunSettings,
    StrategyOptions,
    TrainingOptions,
)

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


UNKNOWN: list[tuple[Alias, str, str]] = [
    *(
        (alias, wrong, f"did you mean {meant!r}?")
        for alias in (FlasheFedAvg, SchemeFedAvg)
        for wrong, meant in (
            ("round_timout", "round_timeout"),
            ("fraction_trian", "fraction_train"),
            ("bit", "bits"),
        )
    ),
    *((SecureSum, wrong, "") for wrong in ("on_round", "checkpoint_every", "delta")),
    *((MaskingKeyAgreement, wrong, "") for wrong in ("on_round", "state_dir", "resume")),
]


@pytest.mark.parametrize(("make", "wrong", "meant"), UNKNOWN)
def test_an_unknown_argument_is_answered_with_the_right_one(
    make: Alias, wrong: str, meant: str
) -> None:
    own = () if make is FlasheFedAvg else (None,)
    said = f"{make.__name__}() takes no argument {wrong!r}: {meant}"
    with pytest.raises(TypeError, match=re.escape(said)):
        make(*own, **{wrong: 1})


@pytest.mark.parametrize(
    ("alias", "how", "codec"),
    [
        (strategies.SashFedAvg, {}, {"bits": 0}),
        (strategies.SashFedAvg, {"bits": 12}, {"bits": 12}),
        (strategies.BatchCryptFedAvg, {}, {"clip": "exchange"}),
        (strategies.BatchCryptFedAvg, {"clip": 0.5}, {"clip": 0.5}),
        (strategies.FedmlHeFedAvg, {}, {}),
        (strategies.FedmlHeFedAvg, {"select": 0.5}, {"weighted": False}),
        (strategies.FedmlHeFedAvg, {"select": Select(0.5, rest="drop")}, {}),
    ],
)
def test_what_an_alias_takes_where_nobody_says(
    alias: Alias, how: dict[str, Any], codec: dict[str, Any]
) -> None:
    assert alias(**how).terms.codec == update_codec(**codec)


CANNOT: list[tuple[Alias, dict[str, Any], str]] = [
    (FlasheFedAvg, {"top_k": True}, "top_k=True: must be a share"),
    (FlasheFedAvg, {"min_replies": 1}, "a sum of one is that client's update"),
    (FlasheFedAvg, {"round_timeout": 0}, "round_timeout=0: must be positive and finite"),
    (FlasheFedAvg, {"round_timeout": math.inf}, "round_timeout=inf"),
    (FlasheFedAvg, {"round_timeout": 43201}, "Flower drops a message after 43200 seconds"),
    (FlasheFedAvg, {"stage_timeout": -1}, "stage_timeout=-1"),
    (FlasheFedAvg, {"connect_timeout": math.nan}, "connect_timeout=nan"),
    *(
        (FlasheFedAvg, {name: count}, f"{name}=.*: must be an integer, 0 or more")
        for name in ("retries", "patience", "rekey_every", "checkpoint_every")
        for count in (-1, 1.5, True)
    ),
    *(
        (FlasheFedAvg, {name: "auc"}, rf"{name}='auc': .*write \('auc',\)")
        for name in ("train_metrics", "evaluate_metrics")
    ),
    (strategies.BatchCryptFedAvg, {"optimizer": "adam"}, "torch"),
    (EsaflFedAvg, {"keys": "joint", "fraction_train": 0.5}, r"fraction_train=0.5.*keys"),
]


@pytest.mark.parametrize(("alias", "how", "why"), CANNOT)
def test_what_cannot_work_is_refused_at_construction(
    alias: Alias, how: dict[str, Any], why: str
) -> None:
    with pytest.raises((ConfigError, MisfitError), match=why):
        alias(**how)
