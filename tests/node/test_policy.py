"""Policy: what the node's own config says, and nobody else."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from flhe.coding.flatten import Entry, Layout
from flhe.coding.laplace import Laplace
from flhe.coding.select import Select
from flhe.coding.update import update_codec
from flhe.errors import ConfigError, PolicyError
from flhe.keys.roster.limits import Limits
from flhe.keys.roster.roster import Roster
from flhe.node.policy import METRICS, Policy, allowed
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.training.terms import Terms
from tests.keys.agreement import roster_of, sites
from tests.rosters import write_pinned


def roster(*schemes: str) -> Roster:
    return roster_of(sites(3), 0, schemes or ("flashe",))


def pin(path: pathlib.Path, agreed: Roster) -> dict[str, object]:
    config = write_pinned(path, agreed)
    del config["flhe-trust"]
    return config


@pytest.fixture
def pinned(tmp_path: pathlib.Path) -> dict[str, object]:
    return pin(tmp_path / "roster.flhe", roster())


FIRST_USE: dict[str, object] = {"flhe-trust": "first-use"}


def of_node(
    config: Mapping[str, object],
    *,
    simulated: bool = False,
    plain_asked: bool = False,
    environ: Any = None,
) -> Policy:
    return Policy.of_node(
        config,
        run_id=5,
        node_id=9,
        simulated=simulated,
        plain_asked=plain_asked,
        environ=environ or {},
    )


def test_a_pinned_roster(pinned: dict[str, object], tmp_path: pathlib.Path) -> None:
    policy = of_node(pinned)
    assert (policy.trust, policy.roster) == ("pinned", roster())
    assert (policy.schemes, policy.metrics) == (allowed(), METRICS)
    assert of_node({**pinned, "flhe-trust": "pinned"}, simulated=True).roster == roster()
    bounds = replace(roster(), limits=Limits({"min-bits": 152, "server-reads": True}))
    holds = of_node({**pin(tmp_path / "limited", bounds), "flhe-min-bits": 112}).limits
    assert (holds["min-bits"], holds["server-reads"]) == (152, False)  # the stricter of both
    for change, says in (
        ({"flhe-roster-hash": ""}, "pin the roster's hash too"),
        ({"flhe-roster-hash": "00" * 32}, "this node pins 0000"),
        ({"flhe-roster": str(pinned["flhe-roster"]) + "x"}, "cannot read"),
        ({"flhe-trust": "first-use"}, "choose one"),
    ):
        with pytest.raises(ConfigError, match=says):
            of_node({**pinned, **change})


def test_first_use_must_be_asked_for_or_simulated() -> None:
    assert (of_node(FIRST_USE).trust, of_node(FIRST_USE).max_federations) == ("first-use", 0)
    assert of_node(FIRST_USE, simulated=True).limits["min-select"] == 1
    of_node({}, simulated=True).check_terms(clear(0.01, "random"))
    assert of_node({}, simulated=True).trust == "first-use"
    with pytest.raises(ConfigError, match="no roster is pinned on this node: set flhe-roster"):
        of_node({})
    with pytest.raises(ConfigError, match="no roster is pinned"):
        of_node({"flhe-trust": "pinned"}, simulated=True)
    with pytest.raises(ConfigError, match="'always': must be"):
        of_node({"flhe-trust": "always"})


def test_only_a_simulation_runs_in_plain_when_the_run_says_so() -> None:
    with pytest.raises(PolicyError, match="flhe-plain=true"):
        of_node({}, simulated=True).check_scheme("plain")
    with pytest.raises(PolicyError):
        of_node(FIRST_USE, plain_asked=True).check_scheme("plain")
    simulated = of_node({}, simulated=True, plain_asked=True)
    simulated.check_scheme("plain")
    simulated.check_scheme("flashe")
    deployed = of_node(FIRST_USE)
    deployed.check_scheme("flashe")
    with pytest.raises(PolicyError, match="asked for an unencrypted run, which this node refuses"):
        deployed.check_scheme("plain")
    of_node({**FIRST_USE, "flhe-schemes": "plain, flashe"}).check_scheme("plain")


@pytest.mark.parametrize(
    "config", [{"flhe-metrics": "loss"}, {"flhe-home": "/var/flhe"}, {"flhe-unpermuted": False}]
)
def test_a_node_that_configures_anything_is_deployed(config: dict[str, object]) -> None:
    """Whatever the process it runs in looks like: nothing falls back to first use, or to plain."""
    with pytest.raises(ConfigError, match="no roster is pinned"):
        of_node(config, simulated=True)
    policy = of_node({**config, **FIRST_USE}, simulated=True)
    with pytest.raises(PolicyError, match="unencrypted"):
        policy.check_scheme("plain")


@pytest.mark.parametrize(
    ("listed", "of_roster", "taken"),
    [
        ("flashe", "flashe", {"flashe"}),
        ("flashe", "esafl", set()),
        ("flashe,esafl", "*", {"flashe", "esafl"}),
        ("plain,flashe", "flashe", {"flashe"}),
        (",".join(allowed()), "*", {"flashe", "sash", "esafl"}),
    ],
)
def test_schemes_must_be_allowed_by_node_and_roster(
    tmp_path: pathlib.Path, listed: str, of_roster: str, taken: set[str]
) -> None:
    policy = Policy(tmp_path, roster=roster(of_roster), schemes=tuple(listed.split(",")))
    for scheme in ("flashe", "sash", "esafl", "plain"):
        if scheme in taken:
            policy.check_scheme(scheme)
            continue
        with pytest.raises(PolicyError):
            policy.check_scheme(scheme)


LEAVES = ["loss", "acc", "train_loss", "eval-accuracy", "test_acc", "val_loss"]
STAYS = [
    *("patients", "loss_patients", "train_patients", "train_train_loss", "trainloss"),
    *("other_loss", "", "train_"),
]


def test_metrics_that_may_leave() -> None:
    policy = of_node(FIRST_USE)
    assert all(map(policy.allows_metric, LEAVES))
    assert not any(map(policy.allows_metric, STAYS))
    policy = of_node({**FIRST_USE, "flhe-metrics": " dice , train_f1,"})
    assert policy.metrics == ("dice", "train_f1")
    assert all(map(policy.allows_metric, ("dice", "eval_dice", "train_f1")))
    assert not policy.allows_metric("loss")
    policy = of_node({**FIRST_USE, "flhe-metrics": "my-metric,my_other"})
    dashed = ("my-metric", "train-my-metric", "train_my-metric", "train_my_metric")
    assert all(map(policy.allows_metric, (*dashed, "my_other", "eval-my-other", "val_my_other")))
    # Whoever writes flhe-metrics = "" wants nothing to leave.
    assert not of_node({**FIRST_USE, "flhe-metrics": ""}).allows_metric("loss")


FLAGS = ["unpermuted", "server-reads", "fresh-keys", "durable", "leave"]


def said(policy: Policy, key: str) -> Any:
    return policy.limits[key] if key in policy.limits else getattr(policy, key)


@pytest.mark.parametrize("key", FLAGS)
def test_flags_are_what_shows_least_unless_said(key: str) -> None:
    for value in (True, False):
        assert said(of_node({**FIRST_USE, f"flhe-{key}": value}), key) is value
    assert said(of_node(FIRST_USE), key) is (key == "fresh-keys")


TEXTS = ["home", "trust", "roster", "schemes", "metrics", "witness"]
NO_VALUES: list[tuple[str, tuple[Any, ...], str]] = [
    *((key, ("true", "yes", 1, None), " must be true or false") for key in FLAGS),
    *((key, (1, True, 0.5, b"x", None), " must be text") for key in TEXTS),
    ("min-survivors", (-1, 1.0, "3", True), " must be a whole number"),
    ("min-top-k", (-0.1, 1.1, "0.1", True, None, float("nan")), ""),
    ("select-rules", ("sensitivity,all", 1), ""),
    # Neither may mean that all are allowed.
    ("schemes", ("", " , "), " names no scheme"),
    ("schemes", ("flash",), ": 'flash' is none of flashe"),
    ("schemes", ("flashe,shas",), ": 'shas' is none of"),
    ("schemes", ("*",), ": '*' is none of"),
]


@pytest.mark.parametrize(("key", "values", "says"), NO_VALUES)
def test_a_value_that_is_none_is_refused(key: str, values: tuple[Any, ...], says: str) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=f"flhe-{key}{re.escape(says)}"):
            of_node({**FIRST_USE, f"flhe-{key}": value})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("FLHE-min-survivors", "did you mean flhe-min-survivors?"),
        ("--flhe-min-survivor", "did you mean flhe-min-survivors?"),
        ("fhle_min_members", "did you mean flhe-min-members?"),
        ("flhe_home", "did you mean flhe-home?"),
        ("flhe-zzz", "the node.toml that `flhe site init` writes lists them"),
    ],
)
@pytest.mark.parametrize("simulated", [False, True])
def test_a_setting_that_does_not_exist_is_refused(key: str, meant: str, simulated: bool) -> None:
    """With a slip of the pen a limit limits nothing, and nobody would notice."""
    says = f"{key}: no setting of flhe in a node config; {re.escape(meant)}"
    with pytest.raises(ConfigError, match=says):
        of_node({**FIRST_USE, key: 3}, simulated=simulated)
    names = ("partition-id", "num-partitions", "metrics", "min-survivors", "file-path", "fl-round")
    of_node({**FIRST_USE, **dict.fromkeys(names, 1)})  # the app's own are its own


SIMULATED: dict[str, Any] = {"simulated": True}
THIRD: dict[str, object] = {"partition-id": 3, "num-partitions": 5}
HOME: dict[str, object] = {**FIRST_USE, "flhe-home": "/a"}


@pytest.mark.parametrize(
    ("config", "environ", "how", "home"),
    [
        (HOME, {}, {}, "/a"),
        (HOME, {"FLHE_HOME": "/f"}, {}, "/a"),
        (FIRST_USE, {"FLHE_HOME": "/f", "HOME": "/h"}, {}, "/f/5/9"),
        (FIRST_USE, {"XDG_DATA_HOME": "/d", "HOME": "/h"}, {}, "/d/flhe/nodes/5/9"),
        (FIRST_USE, {"HOME": "/h"}, {}, "/h/.local/share/flhe/nodes/5/9"),
        ({}, {"FLHE_HOME": "/f"}, SIMULATED, "/f/5/9"),
        # Node ids of a simulation are other ones in the run that resumes it; partitions are not.
        (THIRD, {"FLHE_HOME": "/f"}, SIMULATED, "/f/node-3"),
        (THIRD, {"HOME": "/h"}, SIMULATED, "/h/.local/share/flhe/nodes/5/9"),
        ({**THIRD, **FIRST_USE}, {"FLHE_HOME": "/f"}, {}, "/f/5/9"),
        ({**THIRD, **HOME}, {"FLHE_HOME": "/f"}, SIMULATED, "/a"),
    ],
)
def test_home_is_the_nodes_own(config: Any, environ: Any, how: Any, home: str) -> None:
    policy = of_node(config, environ=environ, **how)
    assert str(policy.home) == home
    assert (policy.root is None) == ("flhe-home" in config)
    assert policy.root is None or policy.root in policy.home.parents
    for own, witness in (({}, "/e"), ({"flhe-witness": "/w"}, "/w")):
        there = of_node({**FIRST_USE, **own}, environ={"FLHE_WITNESS": "/e"})
        assert there.witness == pathlib.Path(witness)


CLEAR: dict[str, Any] = {"codec": update_codec(weighted=False)}
LAYOUT = Layout((Entry("fc", (9,), "float32"), Entry("conv", (91,), "float32")))


def clear(ratio: float = 0.5, rule: str = "sensitivity", noise: Laplace | None = None) -> Terms:
    return Terms(select=Select(ratio, rule), noise=noise, **CLEAR)


SELECT = {"flhe-min-select": 0.1}
LAYERS = {**SELECT, "flhe-select-rules": "layers"}
NOISY = {**SELECT, "flhe-min-noise": 0.5}
OPEN = Terms(codec=update_codec(top_k=0.1, permute=False))


@pytest.mark.parametrize(
    ("config", "terms", "refused"),
    [
        ({}, Terms(), ""),
        ({}, Terms(codec=update_codec(top_k=0.1)), ""),
        ({}, OPEN, "with permute=False, which reveals"),
        ({"flhe-unpermuted": True}, OPEN, ""),
        ({}, clear(0.99), "encrypts 1 or more"),
        (SELECT, clear(0.1), ""),
        (SELECT, clear(0.0999), "0.0999 of each update"),
        (SELECT, clear(rule="random"), "by 'random', this node"),
        ({**SELECT, "flhe-select-rules": "random, layers"}, clear(rule="random"), ""),
        ({**SELECT, "flhe-select-rules": "random"}, clear(), "by 'sensitivity', this node"),
        (LAYERS, Terms(select=Select(rule="layers:fc"), **CLEAR), "0.09 of each update"),
        (LAYERS, Terms(select=Select(rule="layers:conv"), **CLEAR), ""),
        (
            {"flhe-select-rules": "layers"},
            Terms(select=Select(rule="layers:conv"), **CLEAR),
            "1 or",
        ),
        (NOISY, clear(0.1), "noise of scale 0,"),
        (NOISY, clear(0.1, noise=Laplace(0.25)), "noise of scale 0.25,"),
        (NOISY, clear(0.1, noise=Laplace(0.5, "all")), ""),
    ],
    ids=str,
)
def test_what_may_be_shown(config: dict[str, object], terms: Terms, refused: str) -> None:
    policy = of_node({**FIRST_USE, **config})
    with pytest.raises(PolicyError, match=refused) if refused else nullcontext():
        policy.check_terms(terms)
        policy.check_layers(terms, LAYOUT)


def test_a_schemes_own_limit_holds() -> None:
    terms = Terms(BatchCrypt(subgroup=True))
    with pytest.raises(PolicyError, match=r"leave subgroup out .*, or set flhe-paillier-subgroup"):
        of_node(FIRST_USE).check_terms(terms)
    of_node({**FIRST_USE, "flhe-paillier-subgroup": True}).check_terms(terms)
    of_node({}, simulated=True).check_terms(terms)
