"""What one message, one file or one restart may do to a node: nothing that lasts."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from flhe.coding.update import update_codec
from flhe.errors import StoreError
from flhe.mods import he_mod, records
from flhe.node.high_water_marks import HighWaterMarks
from flhe.node.keyfile import KeyFile
from flhe.node.policy import Policy
from flhe.node.store import Store
from flhe.schemes.sash.scheme import Sash
from flhe.training.due import MAX_AHEAD
from flhe.training.terms import Terms
from flhe.wire import canonical, files
from tests.mods.harness import TERMS, Group, Site, answer, pinned, refused, update


def content_stamp(path: Path) -> str | None:
    """What inode and change time are to a file of a disk image that was put back: the same again."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def test_an_agreement_on_a_disk_that_was_put_back_is_not_finished_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands before its epoch: finished twice, it would have two sets of marks for one key."""
    boot = ["monday"]

    def opened(policy: Policy) -> Store:
        return Store(policy.home, boot=boot[0])

    monkeypatch.setattr(he_mod, "open_store", opened)
    monkeypatch.setattr(files, "stamp", content_stamp)
    one = Group(tmp_path, 3).agree()
    site, image = one.sites[0], tmp_path / "image"
    shutil.copytree(site.home, image)
    update(one.ask(site))
    shutil.rmtree(site.home)
    shutil.copytree(image, site.home)
    boot[0] = "tuesday"
    refused(one.ask(site), 1020)
    assert "this machine has started anew since" in site.log
    assert len(site.app.seen) == 1
    one.renew()
    update(one.ask(site, attempt=1))


@pytest.mark.parametrize("what", ["older", "cut short", "of another federation"])
def test_a_key_file_that_cannot_be_read_keeps_nobody_out(group: Group, what: str) -> None:
    """Nor does it make a round openable again."""
    group.play()
    site = group.sites[0]
    keys = next(site.home.glob("epochs/*"))
    if what == "of another federation":
        junk = site.home / "epochs" / bytes(16).hex()
        junk.write_bytes(b"junk")
        junk.chmod(0o600)
    elif what == "older":
        body = canonical.loads(keys.read_bytes(), 1 << 26, "keys")
        del body["boot"]
        keys.write_bytes(canonical.dumps({**body, "v": 2}))
    else:
        keys.write_bytes(keys.read_bytes()[:-5])
    if what != "of another federation":
        assert "epoch" not in answer(site.ask("status"))
        refused(group.ask(site, round_=2), 1020)
    group.renew()
    group.open(group.total(group.parts(2)), round=2)
    kept = next(p for p in site.home.glob("epochs/*") if p.stat().st_size > 9).read_bytes()
    assert KeyFile.from_bytes(kept).opened == site.model.round == 2


def test_a_session_that_cannot_be_read_is_agreed_on_anew(group: Group) -> None:
    group.parts()
    site = group.sites[0]
    (site.run / "session").write_bytes(b"\xa1")
    assert "epoch" not in answer(site.ask("status"))
    refused(group.ask(site, attempt=1), 1020)
    group.renew()
    update(group.ask(site, attempt=1))


def test_a_round_far_ahead_is_refused(group: Group) -> None:
    """Each number that is used up is one that no later round has."""
    site = group.sites[0]
    refused(group.ask(site, round_=1 + MAX_AHEAD), 1014)
    total = group.total(group.parts(MAX_AHEAD))
    bad = replace(total, data=total.data.copy())
    bad.data[0] ^= 1
    refused(group.evaluate(site, bad, round=MAX_AHEAD), 1023)
    # Those numbers are gone, and the ones behind them are not out of reach.
    refused(group.evaluate(site, total, round=MAX_AHEAD), 1012)
    update(group.ask(site, round_=1 + MAX_AHEAD, attempt=1))


# --- federations ---


@pytest.mark.parametrize("most", [1, 2])
def test_a_server_begins_as_many_federations_as_a_node_allows(tmp_path: Path, most: int) -> None:
    """Two from one model have two sums of one round, whose difference may be somebody's update."""
    one = Group(tmp_path, 4)
    pinned(tmp_path, one.sites, **({} if most == 1 else {"flhe-max-federations": most}))  # type: ignore[arg-type]
    site, stage, fields = one.sites[0], one.stage, {"number": 0, "terms": TERMS.to_bytes()}
    for number in (800, 801):  # an agreement that fails uses up none
        answer(site.ask("advertise", federation=records.federation_name(number), **fields))
    for number in range(most):
        name = records.federation_name(500 + number)
        one.stage = lambda name=name, **fields: stage(federation=name, **fields)  # type: ignore[method-assign, misc]
        one.agree()
        update(one.ask(site, federation=name))
    refused(site.ask("advertise", federation=records.federation_name(900), **fields), 1026)
    assert f"begun on this node, its policy allows {most}" in site.log
    begun = {**fields, "federation": records.federation_name(500), "number": 9}
    answer(site.ask("advertise", **begun))  # one that has begun goes on


def test_trials_begin_as_many_as_they_like(tmp_path: Path) -> None:
    site, fields = Site(tmp_path / "home"), {"number": 0, "terms": TERMS.to_bytes()}
    for number in range(3):
        answer(site.ask("advertise", federation=records.federation_name(number + 1), **fields))


# --- which rounds are over ---


SEALED_TO_CLIENTS = Terms(
    Sash(unmask="clients"), update_codec(bits=16, clip=1.0, max_examples=100), metrics=("loss",)
)


@pytest.mark.parametrize("how", ["leaves and comes back", "its key file is cut short"])
def test_a_round_that_may_have_been_signed_stays_so(tmp_path: Path, how: str) -> None:
    """Two epochs later, too: marks that came from an epoch before have no file of their own."""
    one = Group(tmp_path, 4, SEALED_TO_CLIENTS).agree()
    site = one.sites[0]
    answer(one.ask(site, round_=3))
    one.renew()
    refused(one.ask(site, round_=2), 1012)
    if how == "leaves and comes back":
        site.allow(flhe_leave=True)
        refused(site.ask("status"), 1021)
        site.allow(flhe_leave=False)
    else:
        keys = next(site.home.glob("epochs/*"))
        keys.write_bytes(keys.read_bytes()[:-5])
    one.renew()
    refused(one.ask(site, round_=2), 1012)
    answer(one.ask(site, round_=4))


def test_what_says_which_rounds_are_over_is_never_guessed(group: Group) -> None:
    site = group.sites[0]
    answer(group.evaluate(site, group.total()))
    group.renew()
    answer(group.ask(site, round_=2))
    assert HighWaterMarks.from_bytes((site.run / "floor").read_bytes()) == HighWaterMarks(1, 0, 1)
    with pytest.raises(StoreError):
        HighWaterMarks.from_bytes(canonical.dumps([2, 1, 0, 1]))
    (site.run / "floor").write_bytes(b"junk")
    refused(group.ask(site, round_=2, attempt=1), 1015)
    assert "which rounds are over is damaged" in site.log
