"""Key agreement as a node sees it: any message, in any order, gives a reply of ours."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict

from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Member, Roster
from flhe.mods import records, table
from flhe.training.optimizer import ServerOptimizer
from flhe.wire import canonical
from tests.mods.harness import RUN, TERMS, Group, Site, answer, refused, update
from tests.rosters import write_signed

STAGES = (
    "advertise",
    "key-pair",
    "take-pair",
    "joint",
    "joint-sum",
    "share",
    "confirm",
    "status",
    "initial",
    "sync",
    "checkpoint",
    "verify",
    "round",
    "supports",
    "update",
    "consist",
    "unmask",
    "evaluate",
)
KEYS = ("key-pair", "take-pair", "joint", "joint-sum")


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path)


def kind_of(stage: str) -> str:
    return "evaluate" if stage == "evaluate" else "train"


# --- order ---


@pytest.mark.parametrize("stage", sorted({*STAGES} - {"advertise", "status"}))
def test_nothing_comes_before_advertise(tmp_path: Path, stage: str) -> None:
    site = Site(tmp_path / "home")
    fields = {"round": 1, "attempt": 0, "terms": TERMS.to_bytes(), "messages": [b"x"]}
    before = ("share", "confirm", "key-pair", "take-pair", "joint", "joint-sum")
    code = 1014 if stage in before else 1020
    refused(site.ask(stage, kind_of(stage), **fields, confirms=[b"x"], sums=[]), code)
    assert not site.app.seen


def test_confirm_without_share(group: Group) -> None:
    hellos = group.hellos()
    refused(group.sites[0].ask("confirm", **group.stage(messages=hellos)), 1014)


def test_share_twice(group: Group) -> None:
    hellos = group.hellos()
    answer(group.sites[0].ask("share", **group.stage(messages=hellos)))
    refused(group.sites[0].ask("share", **group.stage(messages=hellos)), 1014)


def test_confirm_twice(group: Group) -> None:
    shares = group.shares(group.hellos())
    answer(group.sites[0].ask("confirm", **group.stage(messages=shares)))
    refused(group.sites[0].ask("confirm", **group.stage(messages=shares)), 1014)


def test_a_round_before_everybody_confirmed(group: Group) -> None:
    group.shares(group.hellos())
    for site in group.sites:
        refused(group.ask(site), 1020)
        assert not site.app.seen


def test_a_round_with_confirms_left_out(group: Group) -> None:
    group.agree()
    site = group.sites[0]
    refused(group.ask(site, confirms=[]), 1020)
    refused(group.ask(site, confirms=group.confirms[1:]), 1014)
    refused(group.ask(site, confirms=[*group.confirms[1:], group.confirms[1]]), 1013)
    refused(group.ask(site, confirms=[group.confirms[0]] * 3), 1014)
    assert not site.app.seen
    assert not (site.home / "epochs").exists()  # no key was stored
    update(group.ask(site))


@pytest.mark.parametrize("stage", KEYS)
def test_stages_that_the_scheme_has_not(group: Group, stage: str) -> None:
    site = group.agree().sites[0]
    update(group.ask(site))
    group.agree()
    fields = {"confirms": group.confirms, "messages": [b"x"], "key-pair": b"x"}
    refused(site.ask(stage, **group.stage(**fields)), 1014)
    assert "and the scheme has none" in site.log


def test_no_checkpoint_to_verify(group: Group) -> None:
    group.agree()
    refused(group.ask(group.sites[0], "verify"), 1014)


def test_a_second_advertise_starts_over(group: Group) -> None:
    first = group.hellos()
    second = group.hellos()
    site = group.sites[0]
    assert first[0] != second[0]
    refused(site.ask("share", **group.stage(messages=first)), 1013)  # not its own any more
    answer(site.ask("share", **group.stage(messages=second)))


def test_another_epoch_is_not_this_nodes(group: Group) -> None:
    group.agree()
    refused(group.ask(group.sites[0], epoch=bytes(16)), 1020)
    assert not group.sites[0].app.seen


def test_an_agreement_copied_before_its_first_round(group: Group, tmp_path: Path) -> None:
    """Two directories, one agreement: both would claim round 1, and use one mask for two vectors."""
    group.agree()
    site = group.sites[0]
    shutil.copytree(site.home, tmp_path / "copy")
    update(group.ask(site))
    refused(group.ask(Site(tmp_path / "copy")), 1020)


def test_secrets_of_a_finished_agreement_are_erased(group: Group) -> None:
    group.agree()
    site = group.sites[0]
    assert (site.run / "agreement").exists()
    update(group.ask(site))
    assert not (site.run / "agreement").exists()
    assert len(list((site.home / "epochs").iterdir())) == 1


def test_a_message_of_another_type_is_no_stage(tmp_path: Path) -> None:
    site = Site(tmp_path / "home")
    fields = {"number": 0, "terms": TERMS.to_bytes()}
    for kind in ("evaluate", "query", "train.advertise", "train.round"):
        refused(site.ask("advertise", kind, **fields), 1014)
    refused(site.ask("evaluate", "train", **fields), 1014)
    assert not site.app.seen


@pytest.mark.parametrize("version", [0, 1, 3, -1, True, 2.0, "2", b"2", [2]])
def test_a_stage_of_another_version(tmp_path: Path, version: Any) -> None:
    site = Site(tmp_path / "home")
    record = ConfigRecord({"v": version, "stage": "advertise", "number": 0})
    record["terms"] = TERMS.to_bytes()
    refused(site.send(RecordDict({records.STAGE: record})), 1025 if type(version) is int else 1014)
    del record["v"]
    refused(site.send(RecordDict({records.STAGE: record})), 1014)
    assert not site.home.exists()


# --- what a relay may do to messages ---


def test_too_few_members(group: Group) -> None:
    hellos = group.hellos()
    refused(group.sites[0].ask("share", **group.stage(messages=hellos[:2])), 1011)


def test_what_a_relay_changes_has_a_code(group: Group) -> None:
    """What each step refuses is in tests/keys; here, that nothing is kept of what was refused."""
    hellos, site = group.hellos(), group.sites[0]
    for wrong, code in (
        ([flipped(hellos[0]), *hellos[1:]], 1013),
        ([hellos[0], flipped(hellos[1]), hellos[2]], 1013),
        ([*hellos, hellos[1]], 1014),
        ([hellos[0], *Group(site.home.parent / "b", run_id=RUN + 1).hellos()], 1014),
    ):
        refused(site.ask("share", **group.stage(messages=wrong)), code)
    shares = group.shares(hellos)
    for wrong, code in (
        (shares[:-1], 1014),
        ([b""] * 6, 1014),
        ([flipped(share) for share in shares], 1013),
    ):
        refused(site.ask("confirm", **group.stage(messages=wrong)), code)
    answer(site.ask("confirm", **group.stage(messages=shares)))


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


# --- rosters ---


def pinned(group: Group, path: Path, *names: int, **bounds: Any) -> dict[str, Any]:
    ids = [Identity.from_seed((group.sites[i].home / "identity.key").read_bytes()) for i in names]
    roster = Roster(
        tuple(Member(f"site-{i}", one.public) for i, one in enumerate(ids)),
        bounds.get("collusion", 0),
        bounds.get("min_survivors", 2),
        bounds.get("schemes", ("flashe",)),
    )
    return write_signed(path, roster, ids)


def test_a_pinned_roster_is_the_list_of_members(tmp_path: Path) -> None:
    group = Group(tmp_path, 4)
    group.hellos()
    config = pinned(group, tmp_path / "roster", 0, 1, 2)
    for site in group.sites:
        site.context.node_config.update(config)
    refused(group.sites[3].ask("advertise", **group.stage()), 1014)  # not in it
    outsider = Group(tmp_path / "other", 1).hellos()[0]
    inside = [answer(s.ask("advertise", **group.stage()))["envelope"] for s in group.sites[:3]]
    refused(group.sites[0].ask("share", **group.stage(messages=[*inside, outsider])), 1014)
    answer(group.sites[0].ask("share", **group.stage(messages=inside)))


def test_a_roster_pinned_anew_in_the_middle_of_a_run(tmp_path: Path) -> None:
    group = Group(tmp_path, 4).agree()
    update(group.ask(group.sites[0]))
    config = pinned(group, tmp_path / "roster", 0, 1, 2, 3, collusion=1)
    site = group.sites[0]
    site.context.node_config.update(config)
    refused(group.ask(site), 1020)
    refused(group.evaluate(site), 1020)
    assert len(site.app.seen) == 1


def test_a_roster_pinned_between_advertise_and_share(tmp_path: Path) -> None:
    """The state of an agreement carries the roster that it began under; the session is checked."""
    group = Group(tmp_path, 3).agree()
    site = group.sites[0]
    site.context.node_config.update(pinned(group, tmp_path / "roster", 0, 1, 2, min_survivors=3))
    refused(group.ask(site), 1020)
    assert not site.app.seen


def test_a_roster_that_bounds_schemes(tmp_path: Path) -> None:
    group = Group(tmp_path, 3)
    group.hellos()
    config = pinned(group, tmp_path / "roster", 0, 1, 2, schemes=("sash",))
    group.sites[0].context.node_config.update(config)
    refused(group.sites[0].ask("advertise", **group.stage()), 1010)


# --- terms ---


OTHER: dict[str, Any] = {"clip": 2.0, "optimizer": ServerOptimizer("fedadam")}
"""One that is in the layout, and one that is not; that every term is in the hash is tested there."""


def changed(name: str) -> bytes:
    """Terms that differ in one field."""
    return dataclasses.replace(TERMS, **{name: OTHER[name]}).to_bytes()


@pytest.mark.parametrize("name", OTHER)
def test_terms_changed_under_way(group: Group, name: str) -> None:
    group.agree()
    site = group.sites[0]
    update(group.ask(site))
    terms = changed(name)
    refused(group.ask(site, terms=terms), 1010)
    refused(group.evaluate(site, terms=terms), 1010)
    for stage in ("sync", "checkpoint", "initial"):
        refused(group.ask(site, stage, terms=terms), 1010)
    refused(site.ask("advertise", number=1, terms=terms), 1010)  # nor with a new agreement
    assert not (site.run / "agreement").exists()
    assert len(site.app.seen) == 1


def test_terms_that_the_key_was_not_agreed_on_for(group: Group) -> None:
    group.agree()
    refused(group.ask(group.sites[0], terms=changed("clip")), 1014)
    update(group.ask(group.sites[0]))


@pytest.mark.parametrize("name", OTHER)
def test_terms_changed_between_advertise_and_the_first_round(group: Group, name: str) -> None:
    """Terms of a new epoch come with its first round: they must be those of the one before."""
    group.agree()
    site = group.sites[0]
    update(group.ask(site))
    group.number = 1
    group.agree()
    terms = changed(name)
    refused(group.ask(site, terms=terms), 1010)
    assert len(site.epochs) == 1
    update(group.ask(site, attempt=1))


BODY = canonical.loads(TERMS.to_bytes(), 9999, "terms")
BAD_TERMS: dict[str, tuple[bytes, int]] = {
    "empty": (b"", 1014),
    "too long": (canonical.dumps("x" * (1 << 20)), 1014),
    "another version": (canonical.dumps({**BODY, "v": 1}), 1014),
    "bits": (canonical.dumps({**BODY, "bits": 0}), 1017),
    "a scheme that is none": (canonical.dumps({**BODY, "scheme": "plain"}), 1017),
}


@pytest.mark.parametrize("name", BAD_TERMS)
def test_terms_that_cannot_work(group: Group, name: str) -> None:
    terms, code = BAD_TERMS[name]
    refused(group.sites[0].ask("advertise", number=0, terms=terms), code)


# --- every stage is known to these tests ---


def test_every_stage_is_named_here() -> None:
    assert {name for _, name in table.STAGES} == set(STAGES)
