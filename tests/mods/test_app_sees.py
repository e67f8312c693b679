"""What the app gets to see, and what of its answers leaves the node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict

from flhe.mods import records
from tests.mods.harness import (
    TERMS,
    App,
    Group,
    Replies,
    Site,
    answer,
    arrays,
    refused,
    update,
    wire,
)

PATIENTS = replace(TERMS, metrics=("loss", "patients"))


def test_the_app_sees_a_plain_fedavg_message(group: Group, site: Site) -> None:
    more = {
        "more": records.from_numpy({"x": np.ones(3)}),
        "flhe.sum.9": records.from_numpy({"x": np.ones(3)}),
    }
    answer(group.evaluate(site, extra=more))
    update(group.ask(site, extra=more))
    # A server that sends other arrays later, or under the model's name, changes nothing.
    other = {name: np.asarray(a + a.dtype.type(1)) for name, a in arrays().items()}
    update(group.ask(site, attempt=1, extra={"arrays": records.from_numpy(other)}))
    assert len(site.app.seen) == 3
    for seen in site.app.seen:
        assert set(seen) == {"arrays", "config"}
        assert dict(seen["config"])["lr"] == 0.1
        for name, array in records.to_numpy(seen["arrays"]).items():
            np.testing.assert_array_equal(array, arrays()[name])
            assert array.dtype == arrays()[name].dtype


def test_a_node_without_a_model_that_is_sent_none(group: Group, site: Site) -> None:
    for record, code in ((ConfigRecord({"a": 1}), 1019), (records.from_pieces([b"x"]), 1014)):
        refused(group.ask(site, extra={"arrays": record}), code)
    assert not site.app.seen
    update(group.ask(site))


def test_a_pickled_model_is_not_loaded(group: Group) -> None:
    evil = records.from_numpy({"w": np.zeros(3)})
    data = b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    data = data.ljust(127) + b"\n" + b"cos\nsystem\n(S'false'\ntR."
    evil["w"] = type(evil["w"])("object", (1,), "numpy.ndarray", data)
    assert group.ask(group.sites[0], extra={"arrays": evil}).has_error()
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
        told = "v step resent header envelope digest history crypto-s"
        assert set(answer(reply)) == {*told.split()}
    sent = wire(reply).replace(update(reply).data.tobytes(), b"")
    for secret in (b"4711", b"37,", b"Ada", b"patients", b"losses", b"loss"):
        assert secret not in sent
    assert {a.stype for a in reply.content[records.UPDATE].values()} == {records.SEALED}


@pytest.mark.parametrize("teller", [0, 1])
def test_only_listed_training_metrics_are_in_the_sum(tmp_path: Path, teller: int) -> None:
    """By each member's own list; the teller tells what its own list has, whatever is in the sum."""
    group = Group(tmp_path, 3, PATIENTS).agree()
    for rank, site in enumerate(group.sites):
        site.app = App(patients=99.0 if rank == 2 else 47.0)
        if rank in (teller, 1):
            site.allow(flhe_metrics="loss,patients")
    total = group.total()
    means = dict(group.evaluate(group.sites[0], total).content["flhe.means.1"])
    told = {"patients": pytest.approx(47.0)} if teller == 0 else {}
    assert means == {"loss": pytest.approx(0.5, abs=1e-4), **told}
    assert "flhe.means.1" not in group.evaluate(group.sites[2], total).content
