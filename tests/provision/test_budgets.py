"""`flhe budget` and `flhe permit`: what a site's administrator sees, confirms and permits."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flhe.coding.base import Mechanism
from flhe.errors import FederationsError, StoreError
from flhe.mods import records
from flhe.node import audit, federations
from flhe.node.ledger import LEDGER
from flhe.node.policy import Policy
from flhe.node.store import Store
from flhe.provision.budgets import budget_of, check_budget
from flhe.provision.checks import Check
from flhe.provision.doctor import examine
from flhe.training.accountant import epsilon, shown
from flhe.training.contract import Contract
from tests.mods.harness import TERMS, Group, answer, pinned, refused, update
from tests.provision.site import bad, good, run, text_of

NOISE = Mechanism(4.0, 0.5)


@pytest.fixture
def known(tmp_path: Path) -> dict[str, object]:
    """The node config of a site with a budget of 5."""
    Store(tmp_path / "home-a").identity()
    (tmp_path / "apart").mkdir(mode=0o700)
    return {
        "flhe-home": str(tmp_path / "home-a"),
        "flhe-trust": "first-use",
        "flhe-witness": str(tmp_path / "apart"),
        "flhe-durable": True,  # the same disk, in a test
        "flhe-max-epsilon": 5.0,
        "flhe-delta": 1e-6,
    }


def checks(known: dict[str, object], **more: object) -> list[Check]:
    policy = Policy.of_node({**known, **more}, run_id=0, node_id=0, simulated=False)
    return list(check_budget(policy))


def test_what_is_spent_is_shown(known: dict[str, object], tmp_path: Path) -> None:
    budget = budget_of(known)
    for _ in range(3):
        budget.spend(NOISE)
    told = good("budget", "--node-config", text_of(known))
    assert "0.5" in told
    assert f"epsilon {shown(epsilon({NOISE: 3}, 1e-6))} at delta 1e-06, of 5" in told
    before = budget.ledger()
    assert "is trusted" in good("budget", "--node-config", text_of(known), "--confirm")
    assert budget.ledger().counts == before.counts
    elsewhere = {**known, "flhe-home": str(tmp_path / "elsewhere")}
    assert "no identity" in bad("budget", "--node-config", text_of(elsewhere))


def test_doctor_says_whether_a_budget_can_be_kept(known: dict[str, object], tmp_path: Path) -> None:
    assert [check.level for check in checks(known)] == ["ok"]
    assert checks(known, **{"flhe-max-epsilon": 0.0}) == []
    [apart] = checks(known, **{"flhe-durable": False})
    assert apart.level in ("fail", "ok")  # where memory is another disk
    (tmp_path / "home-a" / LEDGER).unlink()
    [check] = checks(known)
    assert (check.level, "no record" in check.says) == ("fail", True)
    good("budget", "--node-config", text_of(known), "--confirm")
    assert [check.level for check in checks(known)] == ["ok"]


def test_a_record_that_is_damaged_is_never_confirmed(
    known: dict[str, object], tmp_path: Path
) -> None:
    record = tmp_path / "home-a" / LEDGER
    record.write_bytes(b"no ledger")
    [check] = checks(known)
    assert (check.level, "--confirm" in check.mend) == ("fail", False)
    asked = ("budget", "--node-config", text_of(known))
    for said in (check.says, bad(*asked), bad(*asked, "--confirm")):
        assert "is damaged: put its file back" in said
        assert "or begin with a new identity" in said
    assert record.read_bytes() == b"no ledger"


@pytest.mark.parametrize("made", [True, False], ids=["identity", "no identity"])
def test_doctor_makes_nothing(made: bool, known: dict[str, object], tmp_path: Path) -> None:
    home, apart = tmp_path / "home-a", tmp_path / "apart"
    if not made:
        shutil.rmtree(home)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for place in (apart, apart / "inner"):
        policy = {**known, "flhe-witness": str(place)}
        assert {check.name for check in examine(policy)} >= {"home", "privacy budget"}
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


# --- a second federation: refused by name, permitted by the site's administrator, once ---


def begin(one: Group, name: int) -> None:
    """Take a federation to its first update."""
    stage = type(one).stage.__get__(one)
    told = {"federation": records.federation_name(name)}
    one.stage = lambda **fields: stage(**told, **fields)  # type: ignore[method-assign]
    one.agree()
    for site in one.sites:
        update(one.ask(site, **told))


def test_a_permit_lets_one_more_federation_begin_without_a_restart(tmp_path: Path) -> None:
    one = Group(tmp_path, 4)
    pinned(tmp_path, one.sites)
    begin(one, 500)
    site, fields = one.sites[0], {"number": 0, "contract": Contract(TERMS).to_bytes()}
    second = {**fields, "federation": records.federation_name(501)}
    refused(site.ask("advertise", **second), 1026)
    assert "permit one more with `flhe permit --home DIR`" in site.log
    for each in one.sites:
        told = good("permit", "--home", each.home)
        assert told.startswith("1 federation has begun on this node. This permit allows 2")
    good("permit", "--home", site.home)  # a second permit adds nothing
    begin(one, 501)
    third = {**fields, "federation": records.federation_name(502)}
    refused(site.ask("advertise", **third), 1026)
    answer(site.ask("advertise", **{**second, "number": 9}))  # one that has begun goes on


def test_a_permit_is_for_a_nodes_own_directory(tmp_path: Path) -> None:
    """One beside it would say that it worked, and permit nothing."""
    (site, *_) = Group(tmp_path / "sites", 3).sites
    begin_in = site.home.parent
    site.ask("status")
    told = bad("permit", "--home", begin_in)
    assert "no identity in it" in told
    assert str(site.home) in told.replace("\n", "")
    assert not (begin_in / "permit").exists()
    assert "no such directory" in bad("permit", "--home", tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "empty").mkdir()
    assert "name the node's flhe-home" in bad("permit", "--home", tmp_path / "empty")


def test_a_permit_allows_one_more_than_have_begun_whatever_the_limit_was(tmp_path: Path) -> None:
    store = Store(tmp_path / "home")
    for number in range(3):
        federations.check(store, number, 3, begin=True)
    with pytest.raises(FederationsError, match=r"3 federations have begun on .* allows 1:"):
        federations.check(store, 3, 1)
    assert federations.permit(store) == 4
    federations.check(store, 3, 1, begin=True)
    with pytest.raises(FederationsError, match=r"4 federations have begun on .* allows 4:"):
        federations.check(store, 4, 1)
    federations.check(store, 4, 0)  # any number
    path = tmp_path / "home" / "permit"
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"9")  # a damaged one permits nothing
    with pytest.raises(StoreError, match="flhe permit"):
        federations.check(store, 7, 1)


def test_the_audit_log_has_the_permit_and_no_server_can_write_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    Store(home).identity()
    good("permit", "--home", home)
    (entry,) = audit.last(Store(home), 9)
    assert (entry.stage, entry.asked_by, entry.answer) == ("permit", "administrator", "permitted")
    assert "permitted" in good("log", "--home", home)
    forged = audit.Entry(run=7, stage="permit", answer="permitted", seconds=0.0)
    assert forged.stage == "unknown"
    (home / "audit.log").unlink()
    (home / "audit.log").mkdir()  # without its line there is no permit
    (home / "permit").unlink()
    assert run("permit", "--home", home).exit_code == 1
    assert not (home / "permit").exists()
