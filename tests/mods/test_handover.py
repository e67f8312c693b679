"""Handing a model on: sealed by one member, opened by another; and what an epoch leaves behind."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord

from flhe.keys import seal
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.identity import Identity
from flhe.mods import records
from flhe.node.keyfile import KeyFile
from flhe.node.store import Store
from flhe.schemes.sealed import Sealed
from flhe.training.model import Model
from flhe.wire import canonical
from tests.mods.harness import (
    RUN,
    SECRET,
    TERMS,
    Group,
    Site,
    answer,
    arrays,
    initial,
    private,
    refused,
    update,
    wire,
)


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path).agree()


@pytest.fixture
def four(tmp_path: Path) -> Group:
    return Group(tmp_path, 4).agree()


def model_file(site: Site) -> bytes:
    return (site.run / "model").read_bytes()


def put(site: Site, model: Model | bytes) -> None:
    """Replace the model on a site's disk."""
    data = model if isinstance(model, bytes) else b"".join(model.chunks())
    (site.run / "model").write_bytes(data)
    (site.run / "model").chmod(0o600)


def drifted(model: Model) -> Model:
    """The model as a member has it whose memory failed: another bit, the same history."""
    w = model.masters["w"].copy()
    w[0, 0] = np.nextafter(w[0, 0], np.float32(0))
    return dataclasses.replace(model, masters={**model.masters, "w": w})


def epoch_of(site: Site) -> Epoch:
    """The keys on a site's disk."""
    [name] = site.epochs
    return Epoch.from_bytes(KeyFile.from_bytes((site.home / "epochs" / name).read_bytes()).epoch)


def played(group: Group, rounds: int = 1) -> list[Sealed]:
    """Sums of some rounds that everyone has opened."""
    sums: list[Sealed] = []
    for round_ in range(1, rounds + 1):
        sums.append(group.total(group.parts(round_, sums[-1:])))
    for site in group.sites:
        answer(group.evaluate(site, *sums[-1:]))
    return sums


def box_of(group: Group, site: Site, **fields: Any) -> ArrayRecord:
    """What a member seals."""
    box = sealed(group.ask(site, "checkpoint", **fields))
    assert box
    return box


def sealed(reply: Message) -> ArrayRecord:
    """The checkpoint in a reply."""
    answer(reply)
    box = reply.content[records.BOX]
    assert isinstance(box, ArrayRecord)
    return box


def hand(group: Group, site: Site, box: ArrayRecord, stage: str = "sync", **fields: Any) -> Message:
    """Send a checkpoint to a member."""
    kind = "evaluate" if stage == "evaluate" else "train"
    return group.ask(site, stage, kind, extra={records.BOX: box}, **fields)


def renew(group: Group) -> None:
    """A new epoch, which begins with the next message."""
    group.number += 1
    group.agree()


# --- a checkpoint brings a member to where the others are ---


def without(site: Site, before: bytes) -> None:
    (site.run / "model").unlink()


def behind(site: Site, before: bytes) -> None:
    put(site, before)


def astray(site: Site, before: bytes) -> None:
    put(site, drifted(site.model))


STATES: dict[str, Callable[[Site, bytes], None]] = {
    "without": without,
    "behind": behind,
    "drifted": astray,
}


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("stage", ["sync", "round", "evaluate", "checkpoint"])
def test_a_checkpoint_brings_any_member_to_the_same_bits(
    four: Group, name: str, stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, late = four.sites[0], four.sites[2]
    update(four.ask(late))
    before = model_file(late)
    played(four)
    STATES[name](late, before)
    assert not (late.run / "model").exists() or model_file(late) != model_file(first)
    caplog.clear()
    box = box_of(four, first)
    answer(hand(four, late, box, stage, round_=2, history=first.model.history))
    assert model_file(late) == model_file(first)
    assert private(late.run / "model")
    assert ("was not the others'" in caplog.text) == (name == "drifted")
    total = four.total(four.parts(2))  # and it takes part again
    for site in four.sites:
        answer(four.evaluate(site, total))
    assert len({model_file(site) for site in four.sites}) == 1
    assert late.model.round == 2


def test_a_checkpoint_and_the_sums_since(four: Group) -> None:
    first, late = four.sites[0], four.sites[3]
    one = four.total(four.parts())
    box = box_of(four, first, sums=[one])
    two = four.total([update(four.ask(s, round_=2, sums=[one])) for s in four.sites[:3]])
    answer(four.evaluate(first, two))
    (late.run / "model").unlink()
    reply = hand(four, late, box, sums=[one, two], history=first.model.history)
    assert dict(reply.content["flhe.opened"]) == {"round": 2, "missed": False}
    assert model_file(late) == model_file(first)
    assert [p.name for p in late.home.glob("used/*/opened-*")] == ["opened-2"]


def test_never_back_to_an_earlier_round(group: Group) -> None:
    [one] = played(group)
    site = group.sites[1]
    old = box_of(group, group.sites[0])
    two = group.total(group.parts(2))
    answer(group.evaluate(site, two))
    after = model_file(site)
    for stage in ("sync", "checkpoint", "evaluate"):
        answer(hand(group, site, old, stage, sums=[one, two]))
        assert model_file(site) == after
    update(hand(group, site, old, "round", round_=3))
    refused(hand(group, site, old, "round", round_=2), 1014)
    assert model_file(site) == after


def test_the_plain_model_is_taken_once(group: Group) -> None:
    """A server that sends its own arrays beside a checkpoint, or later, changes nothing."""
    played(group)
    late = group.sites[2]
    (late.run / "model").unlink()
    other = records.from_numpy({n: np.asarray(a + a.dtype.type(1)) for n, a in arrays().items()})
    box = box_of(group, group.sites[0])
    answer(group.ask(late, "sync", extra={records.BOX: box, "arrays": other}))
    answer(group.ask(late, "sync", extra={"arrays": other}))
    assert model_file(late) == model_file(group.sites[0])


# --- checkpoints that are refused ---


def altered(box: ArrayRecord, at: int) -> ArrayRecord:
    data = bytearray(b"".join(records.to_pieces(box)))
    data[at] ^= 1
    return records.from_pieces([bytes(data)])


@pytest.mark.parametrize("model", [True, False])
def test_a_checkpoint_that_was_changed(group: Group, model: bool) -> None:
    played(group)
    site = group.sites[2]
    box = box_of(group, group.sites[0])
    if not model:
        (site.run / "model").unlink()
    files = {p: p.read_bytes() for p in site.run.iterdir()}
    whole = b"".join(records.to_pieces(box))
    pieces = records.to_pieces(box)
    size = len(whole)
    for at in (*range(0, size, max(1, size // 60)), size - 1):
        assert hand(group, site, altered(box, at)).error.code in (1013, 1014)
    for data in (b"", whole[:-1], whole + b"\0", whole[: len(pieces[0])], SECRET.encode()):
        assert hand(group, site, records.from_pieces([data])).error.code in (1013, 1014)
    for wrong in (
        records.from_pieces(reversed(pieces)),
        ArrayRecord({"0001": box["0000"]}),
        ArrayRecord(),
        initial(),
        records.from_sealed(group.total(group.parts(2))) if model else initial(),
    ):
        assert hand(group, site, wrong).error.code in (1013, 1014)
    if model:
        files[site.run / "outbox"] = (site.run / "outbox").read_bytes()
    assert {p: p.read_bytes() for p in site.run.iterdir()} == files


def test_a_checkpoint_of_another_epoch(group: Group) -> None:
    played(group)
    old = box_of(group, group.sites[0])
    renew(group)
    site = group.sites[2]
    put(site, drifted(site.model))
    before = model_file(site)
    refused(hand(group, site, old), 1014)
    assert model_file(site) == before
    answer(hand(group, site, box_of(group, group.sites[0])))
    assert model_file(site) == model_file(group.sites[0])


def test_a_checkpoint_that_a_member_sealed_otherwise(group: Group) -> None:
    """A member has the key; what it may say with it is bound all the same."""
    played(group)
    site = group.sites[0]
    epoch = epoch_of(group.sites[1])
    model = dataclasses.replace(site.model, round=5)
    other = Model.initial({"w": np.ones(3, np.float32)})
    good = {
        "run_id": RUN,
        "roster_hash": epoch.roster.hash,
        "stage": "checkpoint",
        "round": 5,
        "attempt": 0,
        "rank": 1,
        "epoch": epoch.id,
    }
    moments = {"v": np.ones(model.layout.floats, np.float32)}
    before = model_file(site)
    for header, data in (
        ({**good, "round": 6}, model),
        ({**good, "stage": "update"}, model),
        ({**good, "run_id": RUN + 1}, model),
        ({**good, "roster_hash": bytes(32)}, model),
        ({**good, "epoch": bytes(16)}, model),
        ({k: v for k, v in good.items() if k != "epoch"}, model),
        (good, dataclasses.replace(model, moments=moments)),
        (good, dataclasses.replace(other, round=5)),
        (good, b"no model"),
    ):
        plain = data if isinstance(data, bytes) else b"".join(data.chunks())
        box = records.from_pieces([seal.seal(epoch.model_key, header, plain)])
        refused(hand(group, site, box), 1014)
        assert model_file(site) == before
    plain = b"".join(model.chunks())
    answer(hand(group, site, records.from_pieces([seal.seal(epoch.model_key, good, plain)])))
    assert site.model.round == 5


# --- the first model, unknown to the server ---


class Makes:
    """Makes an initial model, another one each time, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, context: Context) -> ArrayRecord:
        self.calls += 1
        return records.from_numpy({**arrays(), "scale": np.array(self.calls, np.float32)})


@pytest.fixture
def secret(group: Group) -> Group:
    """A federation whose messages hold no model."""
    group.start = {}
    for site in group.sites:
        site.initial = Makes()
    return group


def test_a_secret_initial_model(secret: Group) -> None:
    site = secret.sites[1]
    reply = secret.ask(site, "initial")
    said = answer(reply)
    assert set(said) == {"v", "round", "history", "digest", "layout", "crypto-s"}
    assert set(reply.content) == {records.REPLY, records.BOX}
    assert (said["round"], said["history"]) == (0, site.model.history)
    layout = site.model.layout.to_fields()
    assert canonical.loads(said["layout"], 1 << 16, "layout") == layout  # type: ignore[arg-type]
    assert site.model.masters["w"].tobytes() not in wire(reply)
    assert site.model.masters["w"].tobytes() not in b"".join(records.to_pieces(sealed(reply)))
    assert not site.app.seen
    # Nobody can test a guess at the arrays against what is public.
    assert site.model.history != Model.initial(site.model.arrays()).history
    other = secret.ask(secret.sites[0], "initial")
    assert secret.sites[0].model.masters["scale"] == site.model.masters["scale"]
    assert answer(other)["history"] != said["history"]


def test_asked_again_for_an_initial_model_it_is_the_same(secret: Group) -> None:
    site = secret.sites[0]
    first, second = (secret.ask(site, "initial") for _ in range(2))
    for name in ("history", "digest", "layout"):
        assert answer(first)[name] == answer(second)[name]
    assert site.initial.calls == 1  # type: ignore[union-attr]
    takers = secret.sites[1:]
    for taker, reply in zip(takers, (first, second), strict=True):
        answer(hand(secret, taker, sealed(reply)))
        assert model_file(taker) == model_file(site)


def test_rounds_from_a_secret_initial_model(secret: Group) -> None:
    first = secret.sites[0]
    box = sealed(secret.ask(first, "initial"))
    history = first.model.history
    for site in secret.sites[1:]:
        refused(secret.ask(site, history=history), 1019)  # it was sent none
        assert not site.app.seen
    extra = {records.BOX: box}
    parts = [update(secret.ask(s, extra=extra, history=history)) for s in secret.sites]
    total = secret.total(parts)
    for site in secret.sites:
        answer(secret.evaluate(site, total))
    assert len({model_file(site) for site in secret.sites}) == 1
    refused(secret.ask(first, "initial"), 1014)  # in the middle of a federation


def test_an_app_that_makes_no_initial_model(secret: Group) -> None:
    site = secret.sites[0]
    site.initial = None
    refused(secret.ask(site, "initial"), 1017)
    assert "HEMod(initial=...)" in site.log
    for made in (None, MetricRecord({"a": 1}), arrays()):
        site.initial = lambda context, made=made: made
        refused(secret.ask(site, "initial"), 1017)
    site.initial = lambda context: records.from_numpy({"flags": np.array([True])})
    refused(secret.ask(site, "initial"), 1017)

    def fail(context: Context) -> ArrayRecord:
        raise ValueError(SECRET)

    site.initial = fail
    reply = secret.ask(site, "initial")
    refused(reply, 1001)
    assert SECRET.encode() not in wire(reply)
    assert not (site.run / "model").exists()


# --- where a node says that it stands ---


def public(site: Site) -> bytes:
    return Identity.from_seed((site.home / "identity.key").read_bytes()).public


def status(site: Site) -> dict[str, Any]:
    reply = site.ask("status")
    assert set(reply.content) == {records.REPLY}
    return {"epoch": b"", "history": b"", **answer(reply)}  # what is empty does not travel


def test_status_of_a_node_that_knows_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path / "home")
    said = status(site)
    assert said == {"v": 2, "member": public(site), "epoch": b"", "round": -1, "history": b""}
    assert not site.app.seen


def test_status_tells_how_far_a_node_has_come(group: Group) -> None:
    site = group.sites[0]
    assert status(site)["epoch"] == b""  # nothing is confirmed yet
    played(group)
    said = status(site)
    assert said["epoch"] == epoch_of(site).id
    assert (said["round"], said["history"]) == (1, site.model.history)


def test_status_of_a_node_without_a_usable_key(group: Group, tmp_path: Path) -> None:
    played(group)
    site = group.sites[0]
    shutil.copytree(site.home, tmp_path / "copy")
    copy = Site(tmp_path / "copy")
    assert status(copy)["epoch"] == b""
    assert status(site)["epoch"] != b""
    shutil.rmtree(site.home / "used")
    said = status(site)
    assert (said["epoch"], said["round"], said["history"]) == (b"", 1, site.model.history)
    refused(group.ask(site, "sync"), 1020)
    assert status(site)["member"] == public(site)


def test_sync_says_who_has_which_model(group: Group) -> None:
    [total] = played(group)
    said = [dict(answer(group.ask(site, "sync"))) for site in group.sites]
    assert all(set(s) == {"v", "round", "history", "digest", "crypto-s"} for s in said)
    assert len({(s["round"], s["history"], s["digest"]) for s in said}) == 1
    assert said[0]["round"] == 1
    assert isinstance(said[0]["digest"], bytes)
    assert len(said[0]["digest"]) == 32
    odd = group.sites[1]
    put(odd, drifted(odd.model))
    again = answer(group.ask(odd, "sync", sums=[total]))
    assert again["history"] == said[0]["history"]
    assert again["digest"] != said[0]["digest"]
    calls = [len(site.app.seen) for site in group.sites]
    group.ask(odd, "sync")
    assert [len(site.app.seen) for site in group.sites] == calls


def test_sync_of_a_node_without_a_model(group: Group) -> None:
    group.start = {}
    said = answer(group.ask(group.sites[0], "sync"))
    assert dict(said) == {"v": 2, "round": -1, "crypto-s": said["crypto-s"]}


def test_sync_opens_sums_and_tells_like_a_round(group: Group) -> None:
    total = group.total(group.parts())
    reply = group.ask(group.sites[0], "sync", sums=[total])
    assert answer(reply)["round"] == 1
    assert set(reply.content) == {records.REPLY, "flhe.opened", "flhe.means.1"}


# --- a model that is not the others' ---


@pytest.mark.parametrize("stage", ["round", "evaluate", "sync", "checkpoint"])
def test_a_message_names_the_model_that_it_starts_from(group: Group, stage: str) -> None:
    total = group.total(group.parts())
    site, kind = group.sites[0], "evaluate" if stage == "evaluate" else "train"
    start = site.model.history
    answer(group.ask(site, stage, kind, history=start, attempt=1))
    calls = len(site.app.seen)
    for wrong in (bytes(32), start[:-1], "x", 7):
        refused(group.ask(site, stage, kind, history=wrong, attempt=2), 1019)
    refused(group.ask(site, stage, kind, history=start, sums=[total], round_=2), 1023)
    assert site.model.round == 0  # nothing is opened that is not what the message names
    answer(group.ask(site, "sync", sums=[total], round_=2))
    assert site.model.round == 1
    refused(group.ask(site, stage, kind, history=start, round_=2), 1019)
    assert len(site.app.seen) == calls
    answer(group.ask(site, stage, kind, history=site.model.history, round_=2))


def test_a_model_that_changed_since_the_update_was_sent(group: Group) -> None:
    """The digest is that of the model that was trained on, kept with the claim."""
    site = group.sites[0]
    parts = group.parts()
    first = group.ask(site)
    put(site, drifted(site.model))
    assert answer(group.ask(site))["digest"] == answer(first)["digest"]
    total = group.total(parts)
    refused(group.evaluate(site, total), 1014)  # its sum is fine; the model to add it to is not
    assert site.model.round == 0
    answer(group.evaluate(group.sites[1], total))


# --- what an epoch leaves behind ---


@pytest.mark.parametrize("model", ["before", "none"])
def test_a_round_that_was_opened_is_not_opened_in_a_later_epoch(group: Group, model: str) -> None:
    """Two sums of one round differ by single updates, under whatever keys."""
    site = group.sites[0]
    update(group.ask(site))
    before = model_file(site)
    played(group)
    renew(group)
    for s in group.sites:
        s.run.joinpath("model").unlink()
        if model == "before":
            put(s, before)
    again = group.total(group.parts(1))  # masks of the new epoch are unused
    for s in group.sites:
        refused(group.evaluate(s, again), 1012)
        assert s.model.round == 0
    total = group.total(group.parts(2))
    for s in group.sites:
        answer(group.evaluate(s, total))
    assert len({model_file(s) for s in group.sites}) == 1


def test_nor_one_that_came_with_a_checkpoint(four: Group) -> None:
    late = four.sites[3]
    update(four.ask(late))
    before = model_file(late)
    one = four.total(four.parts())
    answer(hand(four, late, box_of(four, four.sites[0], sums=[one])))
    assert not list(late.home.glob("used/*/opened-*"))
    renew(four)
    answer(four.ask(late, "sync"))
    put(late, before)
    for site in four.sites[:3]:
        answer(four.ask(site, "sync"))
        put(site, before)
    refused(four.evaluate(late, four.total(four.parts())), 1012)


def test_keys_of_the_epoch_before_are_erased(group: Group) -> None:
    played(group)
    olds = [site.epochs for site in group.sites]
    renew(group)
    for site, old in zip(group.sites, olds, strict=True):
        assert site.epochs == old  # until everybody has confirmed
        answer(group.ask(site, "sync"))
        assert len(site.epochs) == 1
        assert site.epochs != old
        assert site.model.round == 1
        assert (site.home / "used" / old[0] / "erased").exists()


CRASHES = ("before the keys", "before the session", "before the erasure", "before the end")


def crash(name: str, patch: pytest.MonkeyPatch) -> None:
    """Make the start of a session stop there."""

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    if name == "before the keys":
        patch.setattr(Store, "put_epoch", stop)
    elif name == "before the erasure":
        patch.setattr(Store, "erase_epoch", stop)
    elif name == "before the end":
        patch.setattr("flhe.node.node.Node.drop_agreement", stop)
    else:
        write = Store.write

        def writing(self: Store, file: str, data: Any) -> None:
            if file.endswith("/session"):
                raise KeyboardInterrupt
            write(self, file, data)

        patch.setattr(Store, "write", writing)


@pytest.mark.parametrize("name", CRASHES)
@pytest.mark.parametrize("then", ["again", "another agreement"])
def test_keys_are_erased_after_a_crash_too(
    group: Group, name: str, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [first] = played(group)
    site = group.sites[0]
    [old] = site.epochs
    before = model_file(site)
    renew(group)
    with monkeypatch.context() as patch:
        crash(name, patch)
        with pytest.raises(KeyboardInterrupt):
            group.ask(site, "sync")
    if then == "another agreement":
        renew(group)
    answer(group.ask(site, "sync"))
    assert old not in site.epochs
    if (name, then) != ("before the session", "another agreement"):
        assert len(site.epochs) == 1
    assert not (site.run / "agreement").exists()
    assert model_file(site) == before
    total = group.total(group.parts(2, [first]))
    for s in group.sites:
        answer(group.evaluate(s, total))
    assert len({model_file(s) for s in group.sites}) == 1


def test_a_crash_forgets_no_opening(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    site = group.sites[0]
    update(group.ask(site))
    before = model_file(site)
    played(group)
    renew(group)
    with monkeypatch.context() as patch:
        crash("before the erasure", patch)
        with pytest.raises(KeyboardInterrupt):
            group.ask(site, "sync")
    renew(group)
    for s in group.sites:
        put(s, before)
    refused(group.evaluate(site, group.total(group.parts(1))), 1012)


# --- leaving ---


def test_a_node_that_leaves_destroys_its_keys(group: Group) -> None:
    played(group)
    site = group.sites[0]
    before = model_file(site)
    [old] = site.epochs
    site.allow(flhe_leave=True)
    for stage, kind in (("round", "train"), ("evaluate", "evaluate"), ("sync", "train")):
        refused(group.ask(site, stage, kind, round_=2), 1021)
    for stage in ("status", "advertise"):
        refused(site.ask(stage, number=1, terms=TERMS.to_bytes()), 1021)
    assert site.epochs == []
    assert (site.home / "used" / old / "erased").exists()
    assert model_file(site) == before
    assert len(site.app.seen) == 2
    site.allow(flhe_leave=False)  # somebody thought better of it: only with new keys
    refused(group.ask(site, round_=2), 1020)
    renew(group)
    update(group.ask(site, round_=2))


def test_a_node_that_leaves_in_the_middle_of_an_agreement(group: Group) -> None:
    site = group.sites[0]
    assert (site.run / "agreement").exists()
    site.allow(flhe_leave=True)
    refused(group.ask(site), 1021)
    assert not (site.run / "agreement").exists()
    site.allow(flhe_leave=False)
    refused(group.ask(site), 1020)


def test_a_node_that_leaves_after_a_crash(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    played(group)
    site = group.sites[0]
    renew(group)
    with monkeypatch.context() as patch:
        crash("before the erasure", patch)
        with pytest.raises(KeyboardInterrupt):
            group.ask(site, "sync")
    assert len(site.epochs) == 2
    site.allow(flhe_leave=True)
    refused(group.ask(site), 1021)
    assert site.epochs == []


# --- a run that resumes another's federation ---


def test_a_later_run_goes_on_with_the_federation(group: Group) -> None:
    played(group)
    name = records.federation_name(RUN)
    for site in group.sites:
        site.context.run_id = RUN + 1
        site.context.node_id += 1000
        said = dict(answer(site.ask("status", federation=name)))
        assert (said["round"], said["member"]) == (1, public(site))
        assert said["epoch"] != b""
        assert status(site)["epoch"] == b""  # its own run has no federation
    parts = [update(group.ask(s, round_=2, federation=name)) for s in group.sites]
    total = group.total(parts)
    for site in group.sites:
        answer(group.evaluate(site, total, federation=name))
        refused(group.ask(site, "sync"), 1020)
    made = {(s.home / "runs" / str(RUN) / "model").read_bytes() for s in group.sites}
    assert len(made) == 1
    assert not (group.sites[0].home / "runs" / str(RUN + 1) / "model").exists()


@pytest.mark.parametrize("name", [bytes(7), bytes(9), "x" * 8, 7, True, [bytes(8)]])
def test_a_federation_that_is_none(group: Group, name: Any) -> None:
    refused(group.sites[0].ask("status", federation=name), 1014)


def test_records_of_other_kinds_are_no_checkpoint(group: Group) -> None:
    played(group)
    site = group.sites[0]
    before = model_file(site)
    for record in (ConfigRecord({"a": 1}), MetricRecord({"a": 1})):
        answer(group.ask(site, "sync", extra={records.BOX: record}))
    assert model_file(site) == before
