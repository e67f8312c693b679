"""A member that colludes with the server, and seals any model for others to take."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from flhe.keys import seal
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.seal import ModelKey
from flhe.mods import records
from flhe.node.store import Store
from flhe.training.chain import Link
from flhe.training.model import Model
from flhe.training.session import Session
from tests.mods.harness import Group, Site, answer, refused


@pytest.fixture
def group(tmp_path: Path) -> Group:
    """Five members of whom one may collude; all are at round 1."""
    made = Group(tmp_path, 5).agree()
    made.play()
    return made


def epoch_of(site: Site) -> Epoch:
    [name] = site.epochs
    return Epoch.from_bytes(Store(site.home).read(f"epochs/{name}"))


def forged(model: Model, round_: int) -> Model:
    """A model of the server's choice; where its round is a later one, as if a sum had made it."""
    masters = {n: a * a.dtype.type(3) for n, a in model.masters.items()}
    if round_ == model.round:
        return dataclasses.replace(model, masters=masters)
    then = dataclasses.replace(model, round=round_, masters=masters, steps=model.steps + 1)
    return then.linked(Link(round_, model.history, bytes(32), b""))


def signed(group: Group, rank: int, model: Model) -> bytes:
    """The voucher of the member of that rank, whatever it holds."""
    site = group.sites[rank]
    epoch = epoch_of(site)
    session = Session(epoch, group.terms, model.layout)
    return session.holding(model, session.digest(model)).sign(Store(site.home).identity())


def handed(group: Group, victim: Site, model: Model, vouchers: list[bytes], **how: Any) -> Message:
    """What the victim answers to a checkpoint that the member of rank 1 has sealed."""
    epoch = epoch_of(group.sites[1])
    pieces = seal.seal(ModelKey.of(epoch), model.round, 1, model.chunks())
    box = {records.BOX: records.from_pieces(pieces)}
    return group.ask(victim, "sync", extra=box, vouchers=vouchers, **how)


@pytest.mark.parametrize("victims", ["there", "gone"])
@pytest.mark.parametrize("round_", [1, 5])
def test_one_member_puts_no_model_in_anothers_place(
    group: Group, victims: str, round_: int
) -> None:
    victim, false = group.sites[0], forged(group.sites[1].model, round_)
    if victims == "gone":
        (victim.run / "model").unlink()
    before, seen = victim.files, len(victim.app.seen)
    own, true = signed(group, 1, false), signed(group, 2, group.sites[2].model)
    changed = own[:-1] + bytes([own[-1] ^ 1])
    forms = [[own], [own, own], [], [own, true], [own, changed], [own, own[:-1]]]
    codes = [1014, 1014, 1014, 1014, 1013, 1014]
    for vouchers, code in zip(forms, codes, strict=True):
        refused(handed(group, victim, false, vouchers), code)
    assert victim.files == before
    assert len(victim.app.seen) == seen


@pytest.mark.parametrize("brought", ["memory", "moments"])
def test_a_first_model_holds_nothing_that_only_sums_make(tmp_path: Path, brought: str) -> None:
    """One member seals it alone: with a selection it chose what all sent in clear."""
    group = Group(tmp_path, 5).agree()
    for site in group.sites:
        answer(group.ask(site))
    kept = np.zeros(group.sites[0].model.layout.floats)
    made: dict[str, Any] = {
        "memory": {"m": kept[:1]},
        "moments": {"m": kept.astype(np.float32)},
    }
    first = dataclasses.replace(group.sites[1].model, **{brought: made[brought]})
    before = group.sites[0].files
    refused(handed(group, group.sites[0], first, [signed(group, 1, first)]), 1014)
    assert "a first model must hold no result" in group.sites[0].log
    assert group.sites[0].files == before


def test_one_more_than_may_collude_are_enough(group: Group) -> None:
    victim, model = group.sites[0], group.sites[1].model
    (victim.run / "model").unlink()
    answer(handed(group, victim, model, [signed(group, rank, model) for rank in (1, 4)]))
    assert victim.model_file == group.sites[1].model_file


def test_a_voucher_is_of_one_epoch(group: Group) -> None:
    victim, model = group.sites[0], group.sites[1].model
    old = signed(group, 4, model)
    group.renew()
    for site in group.sites:
        answer(group.ask(site, "sync"))
    (victim.run / "model").unlink()
    refused(handed(group, victim, model, [signed(group, 1, model), old]), 1014)
    answer(handed(group, victim, model, [signed(group, rank, model) for rank in (1, 4)]))


@pytest.mark.parametrize(
    "change",
    [
        {"senders": bytes(8)},
        {"digest": bytes(32)},
        {"before": bytes(32)},
        {"round": 2},
    ],
)
def test_links_that_do_not_lead_to_the_history(group: Group, change: dict[str, Any]) -> None:
    """Even members who vouch for it cannot have it taken: the reader computes it itself."""
    victim, model = group.sites[0], group.sites[1].model
    (victim.run / "model").unlink()
    [link] = model.chain
    for chain in ((link._replace(**change),), (), (link, link)):
        false = dataclasses.replace(model, chain=chain)
        vouchers = [signed(group, rank, false) for rank in (1, 4)]
        refused(handed(group, victim, false, vouchers), 1024)
    assert not (victim.run / "model").exists()
