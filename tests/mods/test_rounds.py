"""Rounds as a node sees them: one use of a mask, and one sum a round."""

from __future__ import annotations

import fcntl
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from flhe.mods import app as mods_app
from flhe.mods import he_mod, records
from flhe.mods.he_mod import LOCKS
from flhe.schemes.flashe.adder import FlasheOpener, FlasheSealer
from flhe.schemes.sealed import Sealed
from flhe.sums import secure_sum
from flhe.sums.secure_sum import SecureSum
from flhe.training.session import Session
from flhe.wire import files
from tests.mods.harness import (
    BEFORE_THE_SESSION,
    RANGED,
    RUN,
    App,
    Group,
    Replies,
    Site,
    answer,
    dying,
    initial,
    private,
    refused,
    update,
    wire,
)
from tests.mods.masked import Masked, answer_in, signature_in
from tests.patience import PATIENCE_S

# --- a mask is used once ---


def test_asked_again_it_sends_the_same_bytes(group: Group, site: Site) -> None:
    first = group.ask(site)
    site.app.step = 0.5  # an app that would train otherwise now
    # By a server that forgot everything, too.
    for fields in ({}, {"confirms": [], "extra": {"arrays": initial()}}):
        again = group.ask(site, **fields)  # type: ignore[arg-type]
        assert update(first).digest() == update(again).digest()
        assert answer(first)["envelope"] == answer(again)["envelope"]
    assert len(site.app.seen) == 1
    assert private(site.run / "outbox")


def test_another_attempt_is_another_ciphertext(group: Group, site: Site) -> None:
    first, second = (update(group.ask(site, attempt=n)) for n in (0, 3))
    assert (first.slot.attempt, second.slot.attempt) == (0, 3)
    assert 0 <= (first.data == second.data).mean() < 0.2  # two keystreams, the same update
    assert len(site.app.seen) == 2
    refused(group.ask(site, attempt=2), 1022)
    refused(group.ask(site, attempt=0), 1022)  # only the last one is kept
    assert len(site.app.seen) == 2  # it is refused before anything is trained


def test_an_update_that_is_lost_is_not_made_again(group: Group, site: Site) -> None:
    first = update(group.ask(site))
    (site.run / "outbox").unlink()
    refused(group.ask(site), 1022)
    assert update(group.ask(site, attempt=1)).digest() != first.digest()
    (site.run / "outbox").unlink()
    (site.run / "journal").unlink()  # a tidy administrator
    refused(group.ask(site, attempt=1), 1020)
    refused(group.ask(site, attempt=2), 1020)


def test_a_crash_between_claim_and_sending(group: Group, site: Site) -> None:
    """The mask may have been used and the result is lost: only another attempt may follow."""
    with dying(SecureSum, "sign"):
        group.ask(site)
    refused(group.ask(site), 1022)
    update(group.ask(site, attempt=1))


def test_claims_and_records_are_on_disk_before_the_keys_are_used(
    group: Group, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[object]()
    encrypt, opener_for = FlasheSealer.encrypt, secure_sum.opener_for

    def encrypting(self: FlasheSealer, *args: Any, **kwargs: Any) -> Sealed:
        seen.append(site.claims)
        return encrypt(self, *args, **kwargs)

    def opening(*args: Any, **kwargs: Any) -> Any:
        seen.append(site.journal.opened["update"][1])
        return opener_for(*args, **kwargs)

    monkeypatch.setattr(FlasheSealer, "encrypt", encrypting)
    update(group.ask(site))
    assert seen == [["1-0-2"]]
    total = group.total()
    seen.clear()
    monkeypatch.setattr(secure_sum, "opener_for", opening)
    answer(group.ask(site, "sync", sums=[total]))
    assert seen == [total.digest()]


@pytest.mark.parametrize(
    "which", [{"attempt": -1}, {"attempt": 1 << 32}, {"round_": 0}, {"round_": -1}]
)
def test_rounds_and_attempts_that_cannot_be(
    group: Group, site: Site, which: dict[str, int]
) -> None:
    refused(group.ask(site, **which), 1014)  # type: ignore[arg-type]
    assert not site.app.seen


def test_rounds_that_came_to_nothing_are_left_out(group: Group, site: Site) -> None:
    update(group.ask(site, round_=2))
    reply = group.ask(site, "sync", sums=[group.total(group.parts(5))])
    assert dict(reply.content["flhe.opened"]) == {"round": 5, "missed": False}
    assert set(reply.content) == {records.REPLY, "flhe.opened", "flhe.means.5"}
    assert site.model.round == 5
    for round_ in (3, 4, 5):
        refused(group.ask(site, round_=round_), 1014)
    assert update(group.ask(site, round_=6)).slot.history == site.model.history


def test_masks_are_computed_while_the_app_trains(
    group: Group, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, done = threading.Event(), threading.Event()
    prepare = FlasheSealer.prepare

    def noting(self: FlasheSealer, *args: Any) -> None:
        began.set()
        assert done.wait(PATIENCE_S)  # the app must come first: nobody waits for us before it
        prepare(self, *args)

    class Waits(App):
        def __call__(self, message: Message, context: Context) -> Message:
            assert began.wait(PATIENCE_S)
            done.set()
            return super().__call__(message, context)

    monkeypatch.setattr(FlasheSealer, "prepare", noting)
    site.app = Waits()
    update(group.ask(site))
    assert not [t for t in threading.enumerate() if t.name.startswith("flhe")]


# --- sums ---


def test_too_few_senders(four: Group) -> None:
    parts, site = four.parts(), four.sites[0]
    before = site.model_file
    for few in (parts[:1], parts[:2], parts[2:]):
        refused(four.evaluate(site, four.total(few)), 1011)
    assert site.model_file == before
    assert not site.opened  # nothing was decrypted
    answer(four.evaluate(site, four.total(parts[:3])))


@pytest.mark.parametrize("how", ["an older model put back", "the model removed"])
def test_a_second_sum_of_a_round_opens_nothing(four: Group, how: str) -> None:
    parts, site = four.parts(), four.sites[0]
    before = site.model_file
    answer(four.evaluate(site, four.total(parts)))
    after = site.model_file
    answer(four.evaluate(site, four.total(parts[:3])))  # skipped: the round is in the model
    assert site.model_file == after
    if how == "the model removed":
        (site.run / "model").unlink()
    else:  # or after a crash between opening and saving
        site.put(before)
    for senders in (parts[:3], parts[1:]):
        refused(four.evaluate(site, four.total(senders)), 1012)
        refused(four.ask(site, round_=2, sums=[four.total(senders)]), 1012)
    answer(four.evaluate(site, four.total(parts)))  # the very same sum is fine
    assert site.model_file == after


def another(total: Sealed, **slot: Any) -> Sealed:
    return replace(total, slot=replace(total.slot, **slot))


def test_sums_that_are_not_in_order(four: Group) -> None:
    first = four.total()
    second = four.total([update(four.ask(s, round_=2, sums=[first])) for s in four.sites[:3]])
    ahead, behind = four.sites[0], four.sites[3]
    before = behind.model_file
    for sums in ([second], [second, first], [another(second, round=1), first]):
        refused(four.evaluate(behind, *sums), 1014)
        assert behind.model_file == before
        assert not behind.opened
    answer(four.evaluate(behind, first, second, first))  # what it has is skipped
    answer(four.evaluate(ahead, second))
    assert behind.model_file == ahead.model_file
    late = Site(ahead.home.parent / "late")
    refused(four.evaluate(late, second), 1020)
    refused(four.evaluate(ahead, another(second, round=3)), 1014)


@pytest.mark.parametrize("sent", [True, False])
def test_an_update_that_is_not_in_the_sum(
    four: Group, sent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is reported and trained again; who sent nothing misses nothing."""
    left_out = four.sites[3]
    total = four.total([update(four.ask(site)) for site in four.sites[: 3 + sent]][:3])
    caplog.clear()
    reply = four.ask(left_out, round_=2, sums=[total])
    assert dict(reply.content["flhe.opened"]) == {"round": 1, "missed": sent}
    assert ("round 1: this node's update is not in the sum" in caplog.text) == sent
    assert update(reply).slot.round == 2


def test_a_round_has_one_sum_across_a_crash(group: Group, site: Site) -> None:
    """The node stops between the keys of the next epoch and its session file."""
    group.play()
    parts = group.parts(2)
    group.renew()
    confirms = group.confirms
    with dying(*BEFORE_THE_SESSION):
        group.ask(site, "sync")
    group.confirms = []  # the server holds them back: the epoch before goes on
    first = group.total(parts)
    spoilt = replace(first, data=first.data ^ np.uint8(1))
    refused(group.evaluate(site, spoilt, round=2), 1023)  # and yet it was decrypted
    group.confirms = confirms
    second = [update(group.ask(s, round_=2)) for s in group.sites if s is not site]
    third = group.ask(site, round_=2)
    if not third.has_error():
        second.append(update(third))
    refused(group.evaluate(site, group.total(second), round=2), 1012)
    assert site.model.round == 1


# --- a node's own bounds on groups and sums: below them it helps nobody, whatever the server says ---


@pytest.mark.parametrize("setting", ["flhe_min_members", "flhe_min_survivors"])
def test_keys_are_shared_with_no_group_that_is_too_small(tmp_path: Path, setting: str) -> None:
    """Sites are first-use here: the bound is the node's own, no roster's."""
    group = Group(tmp_path, 4)
    hellos, site = group.hellos(), group.sites[0]
    assert site.context.node_config["flhe-trust"] == "first-use"
    site.allow(**{setting: 4})
    refused(site.ask("share", **group.stage(messages=hellos[:3])), 1011)
    answer(site.ask("share", **group.stage(messages=hellos)))


def test_a_bound_that_is_raised_holds_at_once(group: Group, site: Site) -> None:
    site.allow(flhe_min_members=4)
    refused(group.ask(site), 1011)
    assert not site.app.seen
    site.allow(flhe_min_members=3)
    update(group.ask(site))


def test_the_server_is_told_how_many_a_sum_needs(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.sites[0].allow(flhe_min_survivors=3)
    shares = group.shares(group.hellos())
    said = [answer(s.ask("confirm", **group.stage(messages=shares))) for s in group.sites]
    assert sorted(one["bounds"] for one in said) == [[3, 0, 2], [3, 0, 2], [3, 0, 3]]  # type: ignore[type-var]


def test_a_sum_of_too_few_stays_closed(group: Group) -> None:
    parts, site = group.parts(), group.sites[2]
    few, all_ = group.total(parts[:2]), group.total(parts)
    site.allow(flhe_min_survivors=3)
    refused(group.evaluate(site, few), 1011)
    assert not site.opened
    answer(group.evaluate(site, all_))  # nothing was spoiled by asking
    answer(group.evaluate(group.sites[0], few))  # where nothing is said


def test_mean_squares_of_too_few_stay_closed(tmp_path: Path) -> None:
    group = Group(tmp_path, terms=RANGED).agree()
    site = group.sites[0]
    site.allow(flhe_min_survivors=3)
    refused(group.ask(site, "update", **{"fitted-on": group.mean_squares(2)}), 1011)
    assert not site.journal.opened
    update(group.ask(site, "update", **{"fitted-on": group.mean_squares()}))


def test_no_set_of_survivors_that_is_too_small_is_signed(tmp_path: Path) -> None:
    group = Masked(tmp_path).agree().uploaded()
    group.sites[0].allow(flhe_min_survivors=3)
    refused(group.consist(0, (0, 1)), 1011)
    signature_in(group.consist(1, (0, 1, 2)))
    answer_in(group.unmask(0, group.signatures((0, 1, 2), (0, 1, 2))))


# --- what reaches the app, and what of its answers leaves the node ---


def test_a_node_without_a_model_that_is_sent_none(group: Group, site: Site) -> None:
    for record, code in ((ConfigRecord({"a": 1}), 1019), (records.from_pieces([b"x"]), 1014)):
        refused(group.ask(site, extra={"arrays": record}), code)
    assert not site.app.seen
    update(group.ask(site))


def test_a_pickled_model_is_not_loaded(group: Group, site: Site) -> None:
    evil = records.from_numpy({"w": np.zeros(3)})
    data = b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    data = data.ljust(127) + b"\n" + b"cos\nsystem\n(S'false'\ntR."
    evil["w"] = type(evil["w"])("object", (1,), "numpy.ndarray", data)
    assert group.ask(site, extra={"arrays": evil}).has_error()
    assert not site.app.seen


def everything(content: RecordDict) -> RecordDict:
    """An app that answers with all it has."""
    content["patients"] = ConfigRecord({"names": ["Ada", "Grace"], "age": 4711})
    content["flhe.means.1"] = ConfigRecord({"age": 4711})
    metrics = content["metrics"]
    assert isinstance(metrics, MetricRecord)
    metrics.update({"losses": [0.1, 0.2, 0.3], "accuracy": [1.5, 2.5], "patients": 4711})
    return content


@pytest.mark.parametrize(
    ("stage", "step"), [("round", "update"), ("evaluate", "evaluation")], ids=["train", "evaluate"]
)
def test_nothing_of_a_reply_but_ciphertext_leaves(
    group: Group, site: Site, stage: str, step: str
) -> None:
    site.app = Replies(everything, examples=37, eval_loss=0.25)
    site.allow(flhe_metrics="loss,accuracy,patients,losses")
    reply = group.ask(site, stage, "evaluate" if stage == "evaluate" else "train")
    assert set(reply.content) == {records.REPLY, records.UPDATE}
    assert answer(reply)["step"] == step
    if step == "update":
        told = "v step resent header envelope digest history crypto-s signed"
        assert set(answer(reply)) == {*told.split()}
    sent = wire(reply).replace(update(reply).data.tobytes(), b"")
    for secret in (b"4711", b"37,", b"Ada", b"patients", b"losses", b"loss"):
        assert secret not in sent
    assert {a.stype for a in reply.content[records.UPDATE].values()} == {records.SEALED}


def test_what_grows_with_the_apps_memory_is_not_told(
    group: Group, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Collecting garbage takes as long as all that an app keeps: its data, for one."""
    clock, lost = time.perf_counter, [0.0]

    def give_back(_: int) -> None:
        lost[0] += 1e6

    for module in (he_mod, mods_app):
        monkeypatch.setattr(module, "give_back", give_back)
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + lost[0])
    for round_ in (1, 2):
        sums, before = [group.total()] if round_ == 2 else [], lost[0]
        told = answer(group.ask(site, round_=round_, sums=sums))
        assert lost[0] >= before + 3e6  # the message, the app's copy, the app's result
        assert told["crypto-s"] < 1e6


# --- a disk that fills up between two steps, and two processes on one directory ---


@contextmanager
def full(name: str, error: tuple[int, str] = (28, "No space left on device")) -> Iterator[None]:
    """There is no room for files that are called so; what was there before stays."""

    def without_room(write: Callable[..., Any]) -> Callable[..., Any]:
        def written(path: Path, *args: Any) -> Any:
            with files.os_errors("write"):
                if path.name == name:
                    raise OSError(*error, str(path))
            return write(path, *args)

        return written

    with pytest.MonkeyPatch.context() as patch:
        for writer in ("create", "replace", "append"):
            patch.setattr(files, writer, without_room(getattr(files, writer)))
        yield


@pytest.mark.parametrize("error", [(28, "No space left on device"), (13, "Permission denied")])
def test_no_room_for_what_was_encrypted(group: Group, site: Site, error: tuple[int, str]) -> None:
    """After the claim: what cannot be kept does not leave, and is not encrypted again."""
    with full("outbox", error):
        refused(group.ask(site), 1015)
    assert site.claims == ["1-0-2"]
    refused(group.ask(site), 1022)
    assert update(group.ask(site, attempt=1)).slot.attempt == 1
    said = [line for line in site.log.splitlines() if "StoreError: " in line]
    assert f"cannot write in the state directory: {error[1]}" in said[0]
    assert str(site.home) not in "".join(said)


def test_no_room_for_the_record_of_an_opening(
    group: Group, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then nothing is decrypted, and the same sum opens once there is room."""
    total = group.total()
    decrypt, opened = FlasheOpener.decrypt, list[int]()

    def noted(self: FlasheOpener, *args: Any) -> Any:
        opened.append(1)
        return decrypt(self, *args)

    monkeypatch.setattr(FlasheOpener, "decrypt", noted)
    with full("journal"):
        refused(group.evaluate(site, total), 1015)
    assert not opened
    answer(group.evaluate(site, total))
    assert opened
    assert site.model.round == 1


def test_no_room_for_a_log(group: Group, site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """The answer is the same."""
    with full("audit.log"):
        update(group.ask(site))
    assert "the audit log could not be written" in caplog.text
    with full("errors.log"):
        refused(group.ask(site, round_=0), 1014)
    assert "flhe/protocol, and its details could not be written" in caplog.text
    assert not (site.home / "errors.log").exists()


def test_a_crash_before_the_claim_leaves_the_attempt_free(group: Group, site: Site) -> None:
    with dying(Session, "encode"):
        group.ask(site)
    assert site.claims == []
    assert update(group.ask(site)).slot.attempt == 0


def test_a_second_process_waits_so_long_and_says_so(
    group: Group, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two SuperNodes on one state directory: the second is answered, not left waiting."""
    slept = list[float]()
    ticks = itertools.count(0.0, 10.0)  # each look at the clock takes ten seconds
    clock = SimpleNamespace(monotonic=lambda: next(ticks), sleep=slept.append)
    handle = os.open(site.home / f"lock-{RUN % LOCKS}", os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with monkeypatch.context() as patch:
        patch.setattr(files, "time", clock)
        refused(group.ask(site), 1015)
    assert slept
    assert not site.app.seen
    assert "another process has held the state directory for 30 s" in site.log
    os.close(handle)
    update(group.ask(site))
