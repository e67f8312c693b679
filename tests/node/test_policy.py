"""Policy: what the node's own config says, and nobody else."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from flhe.coding.flatten import Entry, Layout
from flhe.coding.laplace import Laplace
from flhe.coding.select import Select
from flhe.errors import ConfigError, PolicyError, QuorumError
from flhe.keys.identity import Identity
from flhe.keys.roster.limits import Limits
from flhe.keys.roster.roster import Member, Roster
from flhe.node.policy import METRICS, SCHEMES, SETTINGS, Policy
from flhe.node.policy import __doc__ as policy_text
from flhe.training.terms import Terms
from tests.rosters import write_signed


def roster(*schemes: str) -> Roster:
    members = tuple(
        Member(f"site-{i}", Identity.from_seed(bytes([i + 1]) * 32).public) for i in range(3)
    )
    return Roster(members, 0, 2, schemes or ("flashe",))


def pin(path: pathlib.Path, agreed: Roster) -> dict[str, object]:
    config = write_signed(path, agreed, (Identity.from_seed(bytes([i + 1]) * 32) for i in range(3)))
    del config["flhe-trust"]
    return config


@pytest.fixture
def pinned(tmp_path: pathlib.Path) -> dict[str, object]:
    """Node config with a roster and its hash."""
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


def test_a_deployed_node_without_a_pinned_roster_does_not_start() -> None:
    with pytest.raises(ConfigError, match="no roster is pinned on this node: set flhe-roster"):
        of_node({})
    with pytest.raises(ConfigError, match="no roster is pinned"):
        of_node({"flhe-trust": "pinned"}, simulated=True)


def test_a_pinned_roster(pinned: dict[str, object]) -> None:
    policy = of_node(pinned)
    assert (policy.trust, policy.roster) == ("pinned", roster())
    assert (policy.schemes, policy.metrics, policy.counts) == (SCHEMES, METRICS, False)


def test_a_roster_must_be_pinned_by_hash(pinned: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="pin the roster's hash too"):
        of_node({**pinned, "flhe-roster-hash": ""})
    with pytest.raises(ConfigError, match="this node pins 0000"):
        of_node({**pinned, "flhe-roster-hash": "00" * 32})
    with pytest.raises(ConfigError, match="cannot read"):
        of_node({**pinned, "flhe-roster": str(pinned["flhe-roster"]) + "x"})


def test_first_use_must_be_asked_for_or_simulated(pinned: dict[str, object]) -> None:
    assert of_node(FIRST_USE).trust == "first-use"
    assert of_node({}, simulated=True).trust == "first-use"
    with pytest.raises(ConfigError, match="choose one"):
        of_node({**pinned, "flhe-trust": "first-use"})
    with pytest.raises(ConfigError, match="'always': must be"):
        of_node({"flhe-trust": "always"})


def test_a_simulated_node_with_a_roster_is_pinned(pinned: dict[str, object]) -> None:
    assert of_node({**pinned, "flhe-trust": "pinned"}, simulated=True).roster == roster()


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
    "config", [{"flhe-metrics": "loss"}, {"flhe-home": "/var/flhe"}, {"flhe-counts": False}]
)
def test_a_node_that_configures_anything_is_deployed(config: dict[str, object]) -> None:
    """Whatever the process it runs in looks like: nothing falls back to first use, or to plain."""
    with pytest.raises(ConfigError, match="no roster is pinned"):
        of_node(config, simulated=True)
    policy = of_node({**config, **FIRST_USE}, simulated=True)
    with pytest.raises(PolicyError, match="unencrypted"):
        policy.check_scheme("plain")


def test_schemes_must_be_allowed_by_node_and_roster(tmp_path: pathlib.Path) -> None:
    for listed, schemes, allowed in (
        ("flashe", ("flashe",), {"flashe"}),
        ("flashe,eshe", ("flashe",), {"flashe"}),
        ("flashe", ("eshe",), set()),
        ("flashe,eshe", ("*",), {"flashe", "eshe"}),
        ("plain,flashe", ("flashe",), {"flashe"}),
        ("flashe,sash", ("sash",), {"sash"}),
        ("sash", ("*",), {"sash"}),
        (",".join(SCHEMES), ("*",), {"flashe", "sash"}),
    ):
        policy = Policy(tmp_path, roster=roster(*schemes), schemes=tuple(listed.split(",")))
        for scheme in ("flashe", "sash", "eshe", "plain"):
            if scheme in allowed:
                policy.check_scheme(scheme)
            else:
                with pytest.raises(PolicyError):
                    policy.check_scheme(scheme)


@pytest.mark.parametrize(
    ("name", "leaves"),
    [
        ("loss", True),
        ("acc", True),
        ("train_loss", True),
        ("eval-accuracy", True),
        ("test_acc", True),
        ("val_loss", True),
        ("patients", False),
        ("loss_patients", False),
        ("train_patients", False),
        ("train_train_loss", False),
        ("trainloss", False),
        ("other_loss", False),
        ("", False),
        ("train_", False),
    ],
)
def test_metrics_that_may_leave(name: str, leaves: bool, tmp_path: pathlib.Path) -> None:
    assert Policy(tmp_path, trust="first-use").allows_metric(name) is leaves


def test_metrics_by_config() -> None:
    policy = of_node({**FIRST_USE, "flhe-metrics": " dice , train_f1,"})
    assert policy.metrics == ("dice", "train_f1")
    assert [policy.allows_metric(n) for n in ("dice", "eval_dice", "train_f1", "loss")] == [
        True,
        True,
        True,
        False,
    ]


def test_an_empty_list_of_metrics_means_none() -> None:
    """Whoever writes flhe-metrics = "" wants nothing to leave."""
    assert not of_node({**FIRST_USE, "flhe-metrics": ""}).allows_metric("loss")


@pytest.mark.parametrize("counts", [True, False])
def test_counts_leave_for_true_alone(counts: bool) -> None:
    assert of_node({**FIRST_USE, "flhe-counts": counts}).counts is counts
    assert not of_node(FIRST_USE).counts


@pytest.mark.parametrize("key", ["counts", "unpermuted", "server-reads", "fresh-keys", "durable"])
@pytest.mark.parametrize("value", ["true", "yes", 1, None])
def test_flags_are_true_or_false(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"flhe-{key} must be true or false"):
        of_node({**FIRST_USE, f"flhe-{key}": value})


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("", "names no scheme"),
        (" , ", "names no scheme"),
        ("flash", "'flash' is none of flashe"),
        ("flashe,shas", "'shas' is none of"),
        ("*", "is none of"),
    ],
)
def test_schemes_that_allow_none_or_do_not_exist(named: str, says: str) -> None:
    """Neither may mean that all are allowed."""
    with pytest.raises(ConfigError, match=f"flhe-schemes.*{re.escape(says)}"):
        of_node({**FIRST_USE, "flhe-schemes": named})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("FLHE-min-survivors", "flhe-min-survivors"),
        ("flhe_min_survivors", "flhe-min-survivors"),
        ("fhle-min-survivors", "flhe-min-survivors"),
        ("fhle_min_members", "flhe-min-members"),
        ("fle-schemes", "flhe-schemes"),
        ("--flhe-min-survivors", "flhe-min-survivors"),
    ],
)
def test_settings_in_another_spelling_are_not_the_apps_own(key: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: no setting of flhe .*did you mean {meant}"):
        of_node({**FIRST_USE, key: 3})


def test_the_apps_own_settings_are_its_own() -> None:
    names = ("partition-id", "num-partitions", "metrics", "min-survivors", "file-path", "fl-round")
    of_node({**FIRST_USE, **dict.fromkeys(names, 1)})


def test_a_node_leaves_for_true() -> None:
    assert of_node({**FIRST_USE, "flhe-leave": True}).leave
    assert not of_node({**FIRST_USE, "flhe-leave": False}).leave
    assert not of_node(FIRST_USE).leave


@pytest.mark.parametrize("leave", ["true", "yes", 1, None])
def test_whoever_means_to_leave_is_not_misread(leave: object) -> None:
    with pytest.raises(ConfigError, match="flhe-leave must be true or false"):
        of_node({**FIRST_USE, "flhe-leave": leave})


@pytest.mark.parametrize(
    "key", ["flhe-home", "flhe-trust", "flhe-roster", "flhe-schemes", "flhe-metrics"]
)
@pytest.mark.parametrize("value", [1, True, 0.5, b"x", None])
def test_settings_are_text(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{key} must be text"):
        of_node({key: value}, simulated=True)


def test_home_is_the_nodes_own(tmp_path: pathlib.Path) -> None:
    configured: dict[str, object] = {**FIRST_USE, "flhe-home": "/var/flhe"}
    assert of_node(configured).home == pathlib.Path("/var/flhe")
    environ = {"FLHE_HOME": str(tmp_path)}
    assert of_node({}, simulated=True, environ=environ).home == tmp_path / "5" / "9"
    both = of_node(configured, environ=environ)
    assert both.home == pathlib.Path("/var/flhe")
    assert of_node({}, simulated=True).home.parts[-2:] == ("5", "9")


def test_a_simulated_node_is_found_again_by_its_partition(tmp_path: pathlib.Path) -> None:
    """Node ids of a simulation are other ones in the run that resumes it."""
    environ = {"FLHE_HOME": str(tmp_path)}
    third: dict[str, object] = {"partition-id": 3, "num-partitions": 5}
    policy = of_node(third, simulated=True, environ=environ)
    assert (policy.home, policy.root) == (tmp_path / "node-3", tmp_path)
    assert of_node(third, simulated=True, environ={"HOME": "/h"}).home.parts[-2:] == ("5", "9")
    deployed = of_node({**third, **FIRST_USE}, environ=environ)
    assert deployed.home == tmp_path / "5" / "9"
    configured = of_node({**third, **FIRST_USE, "flhe-home": "/a"}, simulated=True, environ=environ)
    assert configured.home == pathlib.Path("/a")


def test_what_the_environment_says() -> None:
    assert of_node(FIRST_USE, environ={"FLHE_METRICS": "f1, auc"}).metrics == ("f1", "auc")
    both = {**FIRST_USE, "flhe-metrics": "loss"}
    assert of_node(both, environ={"FLHE_METRICS": "f1"}).metrics == ("loss",)
    for environ, home in (
        ({"FLHE_HOME": "/a", "HOME": "/h"}, "/a/5/9"),
        ({"XDG_DATA_HOME": "/d", "HOME": "/h"}, "/d/flhe/nodes/5/9"),
        ({"HOME": "/h"}, "/h/.local/share/flhe/nodes/5/9"),
    ):
        assert str(of_node(FIRST_USE, environ=environ).home) == home


CLEAR: dict[str, Any] = {"weighted": False}
LAYOUT = Layout((Entry("fc", (9,), "float32"), Entry("conv", (91,), "float32")))


@pytest.mark.parametrize(
    ("config", "terms", "refused"),
    [
        ({}, Terms(), ""),
        ({}, Terms(select=Select(0.01, "random", "drop")), ""),
        ({}, Terms(select=Select(0.99), **CLEAR), "encrypts 1 or more"),
        ({"flhe-min-select": 0.1}, Terms(select=Select(0.1), **CLEAR), ""),
        ({"flhe-min-select": 0.1}, Terms(select=Select(0.0999), **CLEAR), "0.0999 of each update"),
        ({"flhe-min-select": 0}, Terms(select=Select(1e-6), **CLEAR), ""),
        ({"flhe-min-select": 0.1}, Terms(select=Select(0.5, "random"), **CLEAR), "'random' choose"),
        (
            {"flhe-min-select": 0.1, "flhe-select-rules": "random, layers"},
            Terms(select=Select(0.5, "random"), **CLEAR),
            "",
        ),
        (
            {"flhe-min-select": 0.1, "flhe-select-rules": "random"},
            Terms(select=Select(0.5), **CLEAR),
            "'sensitivity' choose",
        ),
        (
            {"flhe-min-select": 0.1, "flhe-select-rules": ""},
            Terms(select=Select(0.5), **CLEAR),
            "'sensitivity' choose",
        ),
        (
            {"flhe-min-select": 0.1, "flhe-select-rules": "layers"},
            Terms(select=Select(rule="layers:fc"), **CLEAR),
            "0.09 of each update",
        ),
        (
            {"flhe-min-select": 0.1, "flhe-select-rules": "layers"},
            Terms(select=Select(rule="layers:conv"), **CLEAR),
            "",
        ),
        (
            {"flhe-select-rules": "layers"},
            Terms(select=Select(rule="layers:conv"), **CLEAR),
            "1 or",
        ),
        (
            {"flhe-min-select": 0.1, "flhe-min-noise": 0.5},
            Terms(select=Select(0.1), **CLEAR),
            "noise of scale 0,",
        ),
        (
            {"flhe-min-select": 0.1, "flhe-min-noise": 0.5},
            Terms(select=Select(0.1), noise=Laplace(0.25), **CLEAR),
            "noise of scale 0.25,",
        ),
        (
            {"flhe-min-select": 0.1, "flhe-min-noise": 0.5},
            Terms(select=Select(0.1), noise=Laplace(0.5, "all"), **CLEAR),
            "",
        ),
        ({"flhe-min-noise": 0.5}, Terms(), ""),
    ],
    ids=str,
)
def test_what_may_be_shown(config: dict[str, object], terms: Terms, refused: str) -> None:
    policy = of_node({**FIRST_USE, **config})

    def check() -> None:
        policy.check_terms(terms)
        policy.check_layers(terms, LAYOUT)

    if not refused:
        check()
        return
    with pytest.raises(PolicyError, match=refused):
        check()


def test_a_simulation_may_show_what_the_run_says() -> None:
    policy = of_node({}, simulated=True)
    policy.check_terms(Terms(select=Select(0.01, "random"), **CLEAR))
    assert of_node(FIRST_USE, simulated=True).min_select == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("flhe-min-select", value) for value in (-0.1, 1.1, "0.1", True, None, float("nan"))),
        *(("flhe-min-noise", value) for value in (-0.1, "0.1", True, float("nan"))),
        ("flhe-select-rules", "sensitivity,all"),
        ("flhe-select-rules", 1),
    ],
)
def test_what_is_no_share_rule_or_scale(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        of_node({**FIRST_USE, key: value})


# --- what the roster's sites agreed on ---


def limited(path: pathlib.Path, **limits: Any) -> dict[str, object]:
    """Node config that pins a roster with these limits."""
    return pin(path / "limited", replace(roster("*"), limits=Limits(**limits)))


STRICTER: list[tuple[str, Any, Any, Any]] = [
    # setting, what the roster says, what the node says, what holds
    ("key-bits", 4096, 2048, 4096),
    ("key-bits", 2048, 4096, 4096),
    ("key-bits", 2048, None, 3072),
    ("fresh-keys", True, None, True),
    ("fresh-keys", False, True, True),
    ("min-select", 0.5, 0.1, 0.5),
    ("min-select", 0.1, 0.5, 0.5),
    ("min-select", 0.1, None, 1.0),
    ("min-noise", 2.0, 0.5, 2.0),
    ("min-noise", 0.5, 2.0, 2.0),
    ("server-reads", True, None, False),
    ("server-reads", False, True, False),
    ("server-reads", True, True, True),
    ("unpermuted", False, True, False),
    ("unpermuted", True, None, False),
    ("counts", False, True, False),
    ("counts", True, True, True),
    ("max-releases", 5, None, 5),
    ("max-releases", 5, 3, 3),
    ("max-releases", 3, 5, 3),
    ("max-releases", 0, 5, 5),
    ("min-members", 3, 2, 3),
    ("min-members", 2, 5, 5),
]


@pytest.mark.parametrize(("setting", "agreed", "own", "holds"), STRICTER)
def test_the_stricter_of_roster_and_node_holds(
    tmp_path: pathlib.Path, setting: str, agreed: Any, own: Any, holds: Any
) -> None:
    field = setting.replace("-", "_")
    config = limited(tmp_path, **{field: agreed})
    said = {} if own is None else {f"flhe-{setting}": own}
    assert getattr(of_node({**config, **said}), field) == holds


def test_a_refusal_says_where_the_limit_is(tmp_path: pathlib.Path) -> None:
    terms = Terms(bits=16, clip=1.0, max_examples=10, scheme="sash")
    with pytest.raises(
        PolicyError, match="flhe-server-reads in the node config, and server-reads in"
    ):
        of_node(limited(tmp_path, server_reads=False)).check_terms(terms)
    with pytest.raises(PolicyError, match=r"set flhe-server-reads in the node config$"):
        of_node(limited(tmp_path)).check_terms(terms)


def test_local_bounds_on_groups_and_sums() -> None:
    policy = of_node({**FIRST_USE, "flhe-min-members": 4, "flhe-min-survivors": 3})
    policy.check_members(4)
    policy.check_survivors(3)
    with pytest.raises(QuorumError, match="3 members answered, this node's policy needs 4"):
        policy.check_members(3)
    with pytest.raises(QuorumError, match="a sum of 2 updates, this node's policy opens none"):
        policy.check_survivors(2)
    wide = of_node({**FIRST_USE, "flhe-min-survivors": 5})
    with pytest.raises(QuorumError, match="4 members answered"):
        wide.check_members(4)
    for bad in (-1, 1.0, "3", True):
        with pytest.raises(ConfigError, match="flhe-min-survivors must be a whole number"):
            of_node({**FIRST_USE, "flhe-min-survivors": bad})


def test_all_settings_are_described() -> None:
    """The module's own text is where administrators look them up."""
    assert policy_text is not None
    described = set(re.findall(r"^    (flhe-[a-z-]+)", policy_text, re.MULTILINE))
    assert described == set(SETTINGS)


def test_a_setting_that_does_not_exist_is_refused(tmp_path: pathlib.Path) -> None:
    """With a slip of the pen a limit limits nothing, and nobody would notice."""
    config = {"flhe-home": str(tmp_path), "flhe-trust": "first-use"}
    for name, hint in (
        ("flhe-min-survivor", "did you mean flhe-min-survivors?"),
        ("flhe_home", "did you mean flhe-home?"),
        ("flhe-zzz", "docs/deploy.md lists them"),
    ):
        for simulated in (False, True):
            with pytest.raises(ConfigError, match=re.escape(hint)):
                Policy.of_node({**config, name: 3}, run_id=1, node_id=1, simulated=simulated)
    Policy.of_node({**config, "partition-id": 0}, run_id=1, node_id=1, simulated=False)
