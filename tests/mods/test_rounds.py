"""Rounds as a node sees them: one use of a mask, one sum a round, and what the app gets to see."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from flhe.coding.support import Support
from flhe.mods import records, stages, training
from flhe.schemes.flashe.scheme import FlasheSealer
from flhe.schemes.sealed import Sealed
from flhe.training import session as session_module
from flhe.training.model import Model
from tests.mods.harness import (
    TERMS,
    App,
    Group,
    Replies,
    Site,
    answer,
    arrays,
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


# --- a mask is used once ---


def test_asked_again_it_sends_the_same_bytes(group: Group) -> None:
    site = group.sites[0]
    first = group.ask(site)
    site.app.step = 0.5  # an app that would train otherwise now
    second = group.ask(site)
    assert update(first).digest() == update(second).digest()
    assert answer(first)["envelope"] == answer(second)["envelope"]
    assert first.content[records.UPDATE] == second.content[records.UPDATE]
    assert len(site.app.seen) == 1
    assert private(site.run / "outbox")


def test_asked_again_by_a_server_that_forgot_everything(group: Group) -> None:
    site = group.sites[0]
    first = update(group.ask(site))
    again = group.ask(site, extra={"arrays": records.from_numpy(arrays())}, confirms=[])
    assert update(again).digest() == first.digest()


def test_another_attempt_is_another_ciphertext(group: Group) -> None:
    site = group.sites[0]
    first, second = (update(group.ask(site, attempt=n)) for n in (0, 3))
    assert (first.slot.attempt, second.slot.attempt) == (0, 3)
    same = first.data == second.data
    assert 0 <= same.mean() < 0.2  # two keystreams, the same update
    assert len(site.app.seen) == 2
    refused(group.ask(site, attempt=2), 1022)
    refused(group.ask(site, attempt=0), 1022)  # only the last one is kept
    assert len(site.app.seen) == 2  # it is refused before anything is trained


def test_an_update_that_is_lost_is_not_made_again(group: Group) -> None:
    site = group.sites[0]
    first = update(group.ask(site))
    (site.run / "outbox").unlink()
    refused(group.ask(site), 1022)
    assert update(group.ask(site, attempt=1)).digest() != first.digest()
    (site.run / "outbox").unlink()
    for claim in site.home.glob("used/*/*"):
        claim.unlink()  # a tidy administrator
    refused(group.ask(site, attempt=1), 1020)
    refused(group.ask(site, attempt=2), 1020)


def test_a_crash_between_claim_and_sending(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask may have been used and the result is lost: only another attempt may follow."""
    site = group.sites[0]

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "sign", crash)
        with pytest.raises(KeyboardInterrupt):
            group.ask(site)
    refused(group.ask(site), 1022)
    update(group.ask(site, attempt=1))


def test_the_claim_is_on_disk_before_anything_is_encrypted(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = group.sites[0]
    claimed: list[list[str]] = []
    encrypt = FlasheSealer.encrypt

    def noting(self: FlasheSealer, *args: Any, **kwargs: Any) -> Sealed:
        claimed.append([p.name for p in site.home.glob("used/*/*")])
        return encrypt(self, *args, **kwargs)

    monkeypatch.setattr(FlasheSealer, "encrypt", noting)
    update(group.ask(site))
    assert claimed == [["1-0-2"]]


def test_a_copy_of_the_state_directory_encrypts_nothing(group: Group, tmp_path: Path) -> None:
    site = group.sites[0]
    first = update(group.ask(site))
    shutil.copytree(site.home, tmp_path / "copy")
    copy = Site(tmp_path / "copy")
    assert update(group.ask(copy)).digest() == first.digest()  # what was sent may be sent again
    refused(group.ask(copy, attempt=1), 1020)
    refused(group.evaluate(copy, group.total(group.parts())), 1020)
    update(group.ask(site, attempt=1))  # the original goes on


def epoch_ids(site: Site, before: str) -> tuple[bytes, bytes]:
    now = next(p.name for p in (site.home / "epochs").iterdir() if p.name != before)
    return bytes.fromhex(now), bytes.fromhex(before)


@pytest.mark.parametrize(
    "which", [{"attempt": -1}, {"attempt": 1 << 32}, {"round_": 0}, {"round_": -1}]
)
def test_rounds_and_attempts_that_cannot_be(group: Group, which: dict[str, int]) -> None:
    refused(group.ask(group.sites[0], **which), 1014)  # type: ignore[arg-type]
    assert not group.sites[0].app.seen


def test_rounds_that_came_to_nothing_are_left_out(group: Group) -> None:
    site = group.sites[0]
    update(group.ask(site, round_=2))
    total = group.total(group.parts(5))
    reply = group.evaluate(site, total)
    assert dict(reply.content["flhe.opened"]) == {"round": 5, "missed": False}
    assert set(reply.content) == {records.REPLY, "metrics", "flhe.opened", "flhe.means.5"}
    assert site.model.round == 5
    for round_ in (3, 4, 5):
        refused(group.ask(site, round_=round_), 1014)
    assert update(group.ask(site, round_=6)).slot.history == site.model.history


# --- what the app sees ---


def test_the_app_sees_a_plain_fedavg_message(group: Group) -> None:
    site = group.sites[0]
    more = {
        "more": records.from_numpy({"x": np.ones(3)}),
        "flhe.x": ConfigRecord({"a": 1}),
        "flhe.sum.9": records.from_numpy({"x": np.ones(3)}),
        "flhe.metrics": MetricRecord({"a": 1}),
    }
    update(group.ask(site, extra=more))
    answer(group.evaluate(site, extra=more))
    for seen in site.app.seen:
        assert set(seen) == {"arrays", "config"}
        assert dict(seen["config"]) == {"lr": 0.1}
        for name, array in records.to_numpy(seen["arrays"]).items():
            np.testing.assert_array_equal(array, arrays()[name])
            assert array.dtype == arrays()[name].dtype


def test_the_app_trains_on_the_model_of_the_disk(group: Group) -> None:
    """A server that sends other arrays later, or under the model's name, changes nothing."""
    site = group.sites[0]
    update(group.ask(site))
    other = {name: np.asarray(a + a.dtype.type(1)) for name, a in arrays().items()}
    update(group.ask(site, attempt=1, extra={"arrays": records.from_numpy(other)}))
    seen = records.to_numpy(site.app.seen[-1]["arrays"])
    np.testing.assert_array_equal(seen["w"], arrays()["w"])


def test_the_app_sees_the_next_model_after_a_sum(group: Group) -> None:
    for site, step in zip(group.sites, (0.125, 0.25, 0.5), strict=True):
        site.app.step = step
    total = group.total(group.parts())
    site = group.sites[1]
    update(group.ask(site, round_=2, sums=[total]))
    seen = records.to_numpy(site.app.seen[-1]["arrays"])
    np.testing.assert_allclose(seen["w"], arrays()["w"] + 0.875 / 3, atol=1e-3)
    assert seen["steps"] == 11
    assert site.model.round == 1


def test_a_node_without_a_model_that_is_sent_none(group: Group) -> None:
    site = group.sites[0]
    for record, code in ((ConfigRecord({"a": 1}), 1019), (records.from_pieces([b"x"]), 1014)):
        refused(group.ask(site, extra={"arrays": record}), code)
    assert not site.app.seen
    update(group.ask(site))


@pytest.mark.parametrize("dtype", [bool, np.complex64, np.uint64, "U3", "datetime64[s]"])
def test_a_model_that_does_not_average(group: Group, dtype: Any) -> None:
    odd = records.from_numpy({"w": np.zeros(3, dtype)})
    refused(group.ask(group.sites[0], extra={"arrays": odd}), 1017)


def test_a_pickled_model_is_not_loaded(group: Group) -> None:
    evil = records.from_numpy({"w": np.zeros(3)})
    data = b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    data = data.ljust(127) + b"\n" + b"cos\nsystem\n(S'false'\ntR."
    evil["w"] = type(evil["w"])("object", (1,), "numpy.ndarray", data)
    reply = group.ask(group.sites[0], extra={"arrays": evil})
    assert reply.has_error()
    assert not group.sites[0].app.seen


# --- what leaves ---


def everything(content: RecordDict) -> RecordDict:
    """An app that answers with all it has."""
    content["patients"] = ConfigRecord({"names": ["Ada", "Grace"], "age": 4711})
    content["flhe.means.1"] = ConfigRecord({"age": 4711})
    metrics = content["metrics"]
    assert isinstance(metrics, MetricRecord)
    metrics.update({"losses": [0.1, 0.2, 0.3], "accuracy": [1.5, 2.5], "patients": 4711})
    return content


def test_nothing_of_a_training_reply_but_the_ciphertext_leaves(group: Group) -> None:
    site = group.sites[0]
    site.app = Replies(everything, examples=37)
    site.allow(flhe_metrics="loss,accuracy,patients,losses", flhe_counts=True)
    reply = group.ask(site)
    assert set(reply.content) == {records.REPLY, records.UPDATE}
    assert set(answer(reply)) == {
        "v",
        "step",
        "resent",
        "told",
        "header",
        "envelope",
        "digest",
        "history",
        "receipt",
        "crypto-s",
    }
    assert answer(reply)["step"] == "update"
    sent = wire(reply)
    for secret in (b"4711", b"37,", b"Ada", b"patients", b"losses", b"loss"):
        assert secret not in sent.replace(update(reply).data.tobytes(), b"")
    assert {a.stype for a in reply.content[records.UPDATE].values()} == {records.SEALED}


def test_what_of_an_evaluation_leaves(group: Group) -> None:
    site = group.sites[0]
    site.app = Replies(everything, eval_loss=0.25, val_acc=0.5, **{"test-loss": 1})
    reply = group.evaluate(site)
    assert set(reply.content) == {records.REPLY, "metrics"}
    assert dict(reply.content["metrics"]) == {
        "loss": 0.5,
        "eval_loss": 0.25,
        "val_acc": 0.5,
        "test-loss": 1,
    }
    assert b"4711" not in wire(reply)
    assert b"num-examples" not in wire(reply)


@pytest.mark.parametrize("value", [True, False, "true", 1, 1.0, "yes"])
def test_example_counts_leave_for_true_alone(group: Group, value: Any) -> None:
    site = group.sites[0]
    site.app = App(examples=4711)
    site.allow(flhe_counts=value)
    reply = group.evaluate(site)
    if type(value) is not bool:  # a slip of the pen is refused, whichever way it was meant
        refused(reply, 1017)
    else:
        assert ("num-examples" in reply.content["metrics"]) == value
    assert (b"4711" in wire(reply)) == (value is True)


def test_a_list_of_counts_never_leaves(group: Group) -> None:
    site = group.sites[0]
    site.app = App(examples=[47, 11])
    site.allow(flhe_counts=True)
    assert "num-examples" not in group.evaluate(site).content["metrics"]


def test_a_metric_list_is_the_whole_list(group: Group) -> None:
    site = group.sites[0]
    site.app = App(accuracy=0.5, patients=3)
    site.allow(flhe_metrics="patients")
    assert dict(group.evaluate(site).content["metrics"]) == {"patients": 3}


def test_counts_are_no_key_to_other_metrics(tmp_path: Path) -> None:
    """The server names the weight; a node that lets counts leave did not mean any metric."""
    terms = dataclasses.replace(TERMS, weight_key="patients")
    group = Group(tmp_path, 3, terms).agree()
    site = group.sites[0]
    site.app = App(patients=4711)
    site.allow(flhe_counts=True)
    reply = group.evaluate(site)
    assert b"4711" not in wire(reply)


def test_only_listed_training_metrics_are_in_the_sum(tmp_path: Path) -> None:
    terms = dataclasses.replace(TERMS, metrics=("loss", "patients"))
    group = Group(tmp_path, 3, terms).agree()
    for site in group.sites:
        site.app = App(patients=47.0)
    group.sites[1].allow(flhe_metrics="loss,patients")
    teller = group.sites[0]
    teller.allow(flhe_metrics="loss,patients")
    group.sites[2].app = App(patients=99.0)  # its policy does not list them
    total = group.total(group.parts())
    means = group.evaluate(teller, total).content["flhe.means.1"]
    assert means["patients"] == pytest.approx(47.0)  # a mean over those two that may tell
    other = group.evaluate(group.sites[2], total)
    assert "flhe.means.1" not in other.content


def test_the_teller_tells_what_its_own_policy_lists(tmp_path: Path) -> None:
    terms = dataclasses.replace(TERMS, metrics=("loss", "patients"))
    group = Group(tmp_path, 3, terms).agree()
    for site in group.sites[1:]:
        site.app = App(patients=47.0)
        site.allow(flhe_metrics="loss,patients")
    means = group.evaluate(group.sites[0], group.total(group.parts())).content["flhe.means.1"]
    assert dict(means) == {"loss": pytest.approx(0.5, abs=1e-4)}


def test_a_metric_that_is_not_finite_is_left_out(group: Group) -> None:
    for site in group.sites:
        site.app = App(loss=float("nan"))
    reply = group.evaluate(group.sites[0], group.total(group.parts()))
    assert dict(reply.content["flhe.means.1"]) == {}


def test_a_node_with_more_than_max_examples(
    group: Group, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as much as under FedAvg, and its log says that its threshold is lower."""
    monkeypatch.setattr(stages, "_said", set())
    counts = (40, 4711, 60)  # TERMS has max_examples=100
    for site, examples, step in zip(group.sites, counts, (0.25, 0.015625, 0.125), strict=True):
        site.app = App(examples=examples, step=step)
    total = group.total(group.parts())
    group.evaluate(group.sites[0], total)
    after = Model.from_bytes(model_file(group.sites[0])).masters
    mean = (40 * 0.25 + 4711 * 0.015625 + 60 * 0.125) / sum(counts)
    assert after["w"] - arrays()["w"] == pytest.approx(mean, abs=1e-5)
    assert "4711" not in caplog.text


# --- sums ---


def test_one_sum_makes_one_model(group: Group) -> None:
    total = group.total(group.parts())
    for site in group.sites:
        reply = group.evaluate(site, total)
        assert dict(reply.content["flhe.opened"]) == {"round": 1, "missed": False}
        assert ("flhe.means.1" in reply.content) == (site is group.sites[0])
    assert len({model_file(site) for site in group.sites}) == 1


def test_too_few_senders(four: Group) -> None:
    parts = four.parts()
    site = four.sites[0]
    before = model_file(site)
    for few in (parts[:1], parts[:2], parts[2:]):
        refused(four.evaluate(site, four.total(few)), 1011)
    assert model_file(site) == before
    assert not list(site.home.glob("used/*/opened-*"))  # nothing was decrypted
    answer(four.evaluate(site, four.total(parts[:3])))


def test_a_sum_comes_again(group: Group) -> None:
    parts = group.parts()
    total = group.total(parts)
    site = group.sites[0]
    answer(group.evaluate(site, total))
    after = model_file(site)
    again = group.evaluate(site, total)
    assert set(again.content) == {records.REPLY, "metrics"}
    update(group.ask(site, round_=2, sums=[total]))
    assert model_file(site) == after


def test_a_second_sum_of_a_round_opens_nothing(four: Group) -> None:
    parts = four.parts()
    site = four.sites[0]
    before = model_file(site)
    answer(four.evaluate(site, four.total(parts)))
    after = model_file(site)
    answer(four.evaluate(site, four.total(parts[:3])))  # skipped: the round is in the model
    assert model_file(site) == after
    # After a crash between opening and saving, or with an older model put back:
    (site.run / "model").write_bytes(before)
    for senders in (parts[:3], parts[1:]):
        refused(four.evaluate(site, four.total(senders)), 1012)
        refused(four.ask(site, round_=2, sums=[four.total(senders)]), 1012)
    assert model_file(site) == before
    answer(four.evaluate(site, four.total(parts)))  # the very same sum is fine
    assert model_file(site) == after


def test_a_second_sum_after_the_model_was_removed(four: Group) -> None:
    parts = four.parts()
    site = four.sites[0]
    answer(four.evaluate(site, four.total(parts)))
    (site.run / "model").unlink()
    refused(four.evaluate(site, four.total(parts[:3])), 1012)


def test_the_hash_is_on_disk_before_a_sum_is_decrypted(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = group.sites[0]
    total = group.total(group.parts())
    seen: list[bytes] = []
    real = session_module.opener_for

    def noting(*args: Any, **kwargs: Any) -> Any:
        seen.extend(p.read_bytes() for p in site.home.glob("used/*/opened-1"))
        return real(*args, **kwargs)

    monkeypatch.setattr(session_module, "opener_for", noting)
    answer(group.evaluate(site, total))
    assert seen == [total.digest()]


def altered(total: Sealed, at: int) -> Sealed:
    data = total.data.copy()
    data[at] ^= 0x10
    return dataclasses.replace(total, data=data)


def another(total: Sealed, **slot: Any) -> Sealed:
    return dataclasses.replace(total, slot=dataclasses.replace(total.slot, **slot))


def spread(total: Sealed, count: int, length: int) -> Sealed:
    """A dense sum that says which coordinates each of its senders has."""
    support = Support.of(np.arange(count, dtype=np.uint32), length)
    return dataclasses.replace(total, supports=(support,) * len(total.senders))


WRONG: dict[str, Callable[[Sealed], Sealed]] = {
    "count altered": lambda t: altered(t, 13 * 18 // 8 + 1),
    "senders": lambda t: dataclasses.replace(t, senders=(0, 1, 3)),
    "more senders": lambda t: dataclasses.replace(t, senders=(0, 1, 2, 3)),
    "history": lambda t: another(t, history=bytes(32)),
    "attempt": lambda t: another(t, attempt=1),
    "a later round": lambda t: another(t, round=2),
    "supports": lambda t: spread(t, 5, 13),
    "cut": lambda t: dataclasses.replace(t, data=t.data[:-1]),
}


DECRYPTED = {"count altered", "senders", "more senders"}
"""Those that only show once the sum is open; of other attempts there are no receipts."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_sum_changes_no_model(four: Group, name: str) -> None:
    parts = four.parts()
    site = four.sites[0]
    before = model_file(site)
    wrong = WRONG[name](four.total(parts[:3]))
    refused(four.evaluate(site, wrong), 1023 if name in DECRYPTED else 1014)
    assert model_file(site) == before
    # What its header shows is seen before anything is decrypted, and the right sum can still come.
    assert bool(list(site.home.glob("used/*/opened-*"))) == (name in DECRYPTED)
    refused(four.ask(site, round_=2, sums=[wrong]), 1023 if name in DECRYPTED else 1014)
    assert len(site.app.seen) == 1  # it trained in round 1, and never since
    assert model_file(site) == before


def test_one_update_passed_off_as_a_sum(four: Group) -> None:
    part = four.parts()[2]
    site = four.sites[0]
    before = model_file(site)
    refused(four.evaluate(site, part), 1011)
    refused(four.evaluate(site, dataclasses.replace(part, senders=(0, 1, 2))), 1023)
    assert model_file(site) == before


def test_records_that_hold_no_sum(group: Group) -> None:
    site = group.sites[0]
    total = group.total(group.parts())
    for record in (
        ConfigRecord({"a": 1}),
        records.from_numpy({"0000": np.zeros(3)}),
        records.from_pieces([b"x"]),
        ArrayRecord(),
    ):
        refused(group.ask(site, round_=2, sums=[total], extra={"flhe.sum.0": record}), 1014)
    refused(group.ask(site, round_=2, sums=[total], extra={"flhe.sum.0": _renamed(total)}), 1014)
    update(group.ask(site, round_=2, sums=[total]))


def _renamed(total: Sealed) -> ArrayRecord:
    return ArrayRecord({"0001": next(iter(records.from_sealed(total).values()))})


def test_sums_that_are_not_in_order(four: Group) -> None:
    first = four.total(four.parts())
    second = four.total([update(four.ask(s, round_=2, sums=[first])) for s in four.sites[:3]])
    ahead, behind = four.sites[0], four.sites[3]
    before = model_file(behind)
    for sums in ([second], [second, first], [another(second, round=1), first]):
        refused(four.evaluate(behind, *sums), 1014)
        assert model_file(behind) == before
        assert not list(behind.home.glob("used/*/opened-*"))
    answer(four.evaluate(behind, first, second, first))  # what it has is skipped
    answer(four.evaluate(ahead, second))
    assert model_file(behind) == model_file(ahead)
    late = Site(ahead.home.parent / "late")
    refused(four.evaluate(late, second), 1020)
    refused(four.evaluate(ahead, another(second, round=3)), 1014)


def test_a_missing_update_is_reported_and_trained_again(
    four: Group, caplog: pytest.LogCaptureFixture
) -> None:
    parts = four.parts()
    total = four.total(parts[:3])
    left_out = four.sites[3]
    caplog.clear()
    reply = four.ask(left_out, round_=2, sums=[total])
    assert dict(reply.content["flhe.opened"]) == {"round": 1, "missed": True}
    assert "round 1: this node's update is not in the sum" in caplog.text
    assert update(reply).slot.round == 2


def test_a_node_that_sent_nothing_misses_nothing(
    four: Group, caplog: pytest.LogCaptureFixture
) -> None:
    total = four.total([update(four.ask(site)) for site in four.sites[:3]])
    caplog.clear()
    reply = four.evaluate(four.sites[3], total)
    assert dict(reply.content["flhe.opened"]) == {"round": 1, "missed": False}
    assert not caplog.text


def test_a_checkpoint_is_sealed_and_runs_no_app(group: Group) -> None:
    site = group.sites[1]
    total = group.total(group.parts())
    reply = group.ask(site, "checkpoint", sums=[total])
    assert set(answer(reply)) == {"v", "round", "history", "digest", "layout", "crypto-s"}
    assert (answer(reply)["round"], answer(reply)["history"]) == (1, site.model.history)
    box = reply.content[records.BOX]
    assert isinstance(box, ArrayRecord)
    assert {array.stype for array in box.values()} == {records.CHECKPOINT}
    assert list(box) == [f"{i:04d}" for i in range(len(box))]
    assert site.model.masters["w"].tobytes() not in b"".join(records.to_pieces(box))
    assert site.model.masters["w"].tobytes() not in wire(reply)
    assert len(site.app.seen) == 1


# --- threads ---


def ours() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("flhe")]


def test_masks_are_computed_while_the_app_trains(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, done = threading.Event(), threading.Event()
    prepare = FlasheSealer.prepare

    def noting(self: FlasheSealer, *args: Any) -> None:
        began.set()
        assert done.wait(10)  # the app must come first: nobody waits for us before it
        prepare(self, *args)

    class Waits(App):
        def __call__(self, message: Message, context: Context) -> Message:
            assert began.wait(10)
            done.set()
            return super().__call__(message, context)

    monkeypatch.setattr(FlasheSealer, "prepare", noting)
    group.sites[0].app = Waits()
    update(group.ask(group.sites[0]))
    assert not ours()


def test_keys_put_back_after_a_new_agreement(group: Group) -> None:
    site = group.sites[0]
    update(group.ask(site))
    [kept] = (site.home / "epochs").iterdir()
    data = kept.read_bytes()
    before = kept.name
    group.number = 1
    group.agree()
    update(group.ask(site))
    assert before not in {p.name for p in (site.home / "epochs").iterdir()}
    kept.write_bytes(data)
    kept.chmod(0o600)
    session = site.run / "session"
    session.write_bytes(session.read_bytes().replace(*epoch_ids(site, before)))
    refused(group.ask(site), 1022)
