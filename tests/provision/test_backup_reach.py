"""What a backup reads: sealed models, and nothing else of what was ever on the wire."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flhe.errors import AuthenticationError
from flhe.keys import seal
from flhe.keys.agreement import key_pair
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.messages import Envelope
from flhe.keys.agreement.model_key import ModelKey
from flhe.keys.roles import opener_for
from flhe.node import backup as format_
from flhe.node.backup import Backup
from flhe.node.checkpoint import open_checkpoint
from flhe.node.store import Store
from flhe.provision import backups
from tests.fuzz import masked, signed
from tests.fuzz.group import exchange
from tests.mods.harness import Group, Site, answer
from tests.provision.test_backups import sealed

PHRASE = "five random words are good"


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format_, "COST", 1 << 4)


def epoch_of(site: Site) -> Epoch:
    store = Store(site.home)
    (only,) = store.epochs()
    return Epoch.from_bytes(store.peek_epoch(only))


def as_group_key(epoch: Epoch) -> Epoch:
    """What whoever has a backup can try: its key in the place of the group's."""
    return replace(epoch, group_key=ModelKey.of(epoch).key)


def test_no_single_update_opens_but_models_do(tmp_path: Path) -> None:
    group = Group(tmp_path / "nodes").agree()
    wire = group.parts()
    model = sealed(group, tmp_path / "model.flhe")
    real = [epoch_of(site) for site in group.sites]
    file, home = tmp_path / "backup", tmp_path / "restored"
    backups.backup(group.sites[1].home, file, PHRASE)
    group.number = 1
    group.agree()
    for site in group.sites:
        answer(group.ask(site, "sync"))
        assert epoch_of(site).id != real[0].id  # those keys are gone everywhere

    kept = Backup.unseal(file.read_bytes(), PHRASE)
    assert kept.models == (ModelKey.of(real[1]),)
    held = bytes(kept.identity.seed) + kept.models[0].to_bytes()
    for epoch in real:
        for secret in (epoch.group_key, *(key for key in epoch.pair_keys if key)):
            assert bytes(secret) not in held
    scheme = group.terms.for_cohort(3)
    thief = as_group_key(real[1])
    for part in wire:
        clear = np.asarray(opener_for(scheme, real[1], part).decrypt(part))
        read = np.asarray(opener_for(scheme, thief, part).decrypt(part))
        assert np.mean(clear == read) < 0.5

    backups.restore(file, home, PHRASE)
    for place in (home, home / "archive", tmp_path):
        assert open_checkpoint(model, place).round == 1
    (key,) = (home / "archive").iterdir()
    assert open_checkpoint(model, key).round == 1


def test_no_key_pair_and_no_answer_to_unmask_opens() -> None:
    """BatchCrypt's and FedML-HE's private keys, and the masking keys that SASH releases to members."""
    epoch = exchange().epochs[0]
    thief = as_group_key(epoch)
    _, message = signed.pair(0)
    box = key_pair._Pair.from_bytes(Envelope.from_bytes(message, key_pair.MAX_PAIR).payload).box
    assert seal.unseal(epoch.group_key, box)[1]
    with pytest.raises(AuthenticationError):
        seal.unseal(thief.group_key, box)

    member = masked.TOLD.epochs[0]
    assert masked.TOLD.combine(masked.HIDDEN, member)
    with pytest.raises(AuthenticationError, match="does not open"):
        masked.TOLD.combine(masked.HIDDEN, as_group_key(member))


def test_a_model_that_was_sealed_under_the_group_key_is_none() -> None:
    """As version 1 did: nothing reads two kinds."""
    epoch = exchange().epochs[0]
    key = ModelKey.of(epoch)
    header = {**key.header(), "round": 1, "attempt": 0, "rank": 0}
    assert seal.unseal(key.key, seal.seal(key.key, header, b"model"))[1] == b"model"
    with pytest.raises(AuthenticationError):
        seal.unseal(key.key, seal.seal(epoch.group_key, header, b"model"))
