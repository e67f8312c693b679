"""Backup and restore: models open, and nothing else does, also once a node has started there."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from flhe.errors import ProtocolError, StoreError
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.roles import opener_for
from flhe.keys.seal import ModelKey
from flhe.mods import records
from flhe.node import backup as format_
from flhe.node.backup import Backup
from flhe.node.checkpoint import open_checkpoint
from flhe.node.store import Store
from flhe.provision import backups, key_commands
from flhe.wire import files
from flhe.wire.canonical import dumps
from tests.mods.harness import Group, answer, refused, update
from tests.provision.site import backup, bad, good, restore

PHRASE = "five random words are good"


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format_, "COST", 1 << 4)


@pytest.fixture
def phrase(tmp_path: Path) -> Path:
    path = tmp_path / "phrase"
    path.touch(0o600)
    path.write_text(PHRASE + "\n")
    return path


def sealed(group: Group, path: Path) -> Path:
    """What the server keeps of a round."""
    total = group.total(group.parts())
    reply = group.ask(group.sites[0], "checkpoint", sums=[total])
    answer(reply)
    box = reply.content[records.BOX]
    path.write_bytes(b"".join(records.to_pieces(box)))  # type: ignore[arg-type]
    return path


def test_a_restored_site_opens_models_and_no_sums(tmp_path: Path, phrase: Path) -> None:
    group = Group(tmp_path / "nodes").agree()
    model = sealed(group, tmp_path / "model.flhe")
    site = group.sites[1]
    (name,) = Store(site.home).names("epochs/*")
    file, home, again = tmp_path / "a.backup", tmp_path / "restored", tmp_path / "again"
    said = backup(site.home, file, phrase)
    assert "the model keys of 1 epoch." in said
    assert file.stat().st_mode & 0o777 == 0o600
    assert PHRASE not in said

    restore(file, home, phrase)
    assert (home / "identity.key").read_bytes() == (site.home / "identity.key").read_bytes()
    assert all(p.stat().st_mode & 0o077 == 0 for p in (home, *home.rglob("*")))
    good("open", model, "--key", home, "--output", tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz") as opened:
        weights = opened["w"]
    (key,) = (home / "archive").iterdir()
    for place in (site.home, home, home / "archive", key, tmp_path):
        np.testing.assert_array_equal(weights, open_checkpoint(model, place).masters["w"])

    backup(home, tmp_path / "again.backup", phrase)  # a restored site's has its archive
    restore(tmp_path / "again.backup", again, phrase)
    open_checkpoint(model, again)
    (again / "archive").rename(again / "epochs")
    with pytest.raises(ProtocolError):  # somebody puts keys of models where a node looks for keys
        Epoch.from_bytes(Store(again).read(name))

    store = Store(home)
    assert store.names("epochs/*") == []
    with pytest.raises(StoreError):
        store.read(name)
    site.allow(flhe_home=str(home))  # a node starts there, in the middle of the run
    refused(group.ask(site, round_=2), 1020)
    refused(group.evaluate(site), 1020)
    assert len(site.app.seen) == 1  # trained before the backup, and not since

    group.number = 1
    group.agree()
    update(group.ask(site))  # with the others, under fresh keys
    (fresh,) = store.names("epochs/*")
    assert fresh != name
    np.testing.assert_array_equal(open_checkpoint(model, home).masters["w"], weights)


def test_no_single_update_opens_but_models_do(tmp_path: Path) -> None:
    """A backup reads sealed models, and nothing else of what was ever on the wire."""
    group = Group(tmp_path / "nodes").agree()
    wire, real = group.parts(), [site.epoch for site in group.sites]
    file = tmp_path / "backup"
    backups.backup(group.sites[1].home, file, PHRASE)
    group.number = 1
    group.agree()
    for site in group.sites:
        answer(group.ask(site, "sync"))
        assert site.epoch.id != real[0].id  # those keys are gone everywhere

    kept = Backup.unseal(file.read_bytes(), PHRASE)
    assert kept.models == (ModelKey.of(real[1]),)
    held = bytes(kept.identity.seed) + kept.models[0].to_bytes()
    for epoch in real:
        for secret in (epoch.group_key, *(key for key in epoch.pair_keys if key)):
            assert bytes(secret) not in held
    scheme = group.terms.for_cohort(3)
    thief = replace(real[1], group_key=ModelKey.of(real[1]).key)  # what whoever has it can try
    for part in wire:
        clear = np.asarray(opener_for(scheme, real[1], part).decrypt(part))
        read = np.asarray(opener_for(scheme, thief, part).decrypt(part))
        assert np.mean(clear == read) < 0.5


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The state directory of a site that has no epoch."""
    Store(tmp_path / "home").identity()
    return tmp_path / "home"


def test_what_is_refused(tmp_path: Path, home: Path, phrase: Path) -> None:
    file, new = tmp_path / "a.backup", tmp_path / "new"
    assert "no identity in it" in backup(tmp_path / "x", file, phrase, bad)
    for poor in ("a" * 30, " " * 12):
        phrase.write_text(poor + "\n")
        assert "6 of them different" in backup(home, file, phrase, bad)
    assert not file.exists()
    phrase.write_text(PHRASE + "\n")
    backup(home, file, phrase)
    assert "exists already" in backup(home, file, phrase, bad)
    assert "exists already" in restore(file, home, phrase, bad)
    phrase.write_text("another passphrase")
    assert "does not open" in restore(file, new, phrase, bad)
    (tmp_path / "card").write_bytes(dumps({"v": 1, "kind": "flhe-card"}))
    assert "no file of" in restore(tmp_path / "card", new, phrase, bad)
    phrase.chmod(0o644)
    assert "chmod 600" in restore(file, new, phrase, bad)
    assert "no terminal" in bad("keys", "restore", file, "--home", new)
    assert not list(tmp_path.glob("*new*"))


@pytest.mark.parametrize("inside", ["\x0b", "\u2028", "\r"])
def test_a_line_of_a_passphrase_file_ends_at_a_line_feed(inside: str, phrase: Path) -> None:
    for end in ("", "\n", "\r\n", "\nanother line"):
        phrase.write_bytes(f"{PHRASE}{inside}and more{end}".encode())
        assert backups.passphrase_in(phrase) == f"{PHRASE}{inside}and more"


def test_half_a_restore_is_none(
    tmp_path: Path, home: Path, phrase: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, rename, create = tmp_path / "a.backup", Path.rename, files.create
    backup(home, file, phrase)

    def full(self: Path, to: Path) -> Path:
        if self.is_dir():
            raise OSError(28, "No space left on device")
        return rename(self, to)

    def stopped(number: int, path: Path, data: bytes) -> None:
        create(path, data)
        if number == signal.SIGINT:  # a shell's background jobs ignore it
            raise KeyboardInterrupt
        os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", full)
        assert "No space left" in restore(file, tmp_path / "deep" / "new", phrase, bad)
    assert not list((tmp_path / "deep").iterdir())
    before = signal.getsignal(signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        monkeypatch.setattr(files, "create", partial(stopped, number))
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            backups.restore(file, tmp_path / "deep" / "new", PHRASE)
        assert not list((tmp_path / "deep").iterdir())
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_terminal_asks_twice_for_a_new_passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, bool]] = []
    prompt = lambda _, **how: asked.append(how) or PHRASE  # noqa: E731
    monkeypatch.setattr(key_commands.typer, "prompt", prompt)
    monkeypatch.setattr(key_commands.sys, "stdin", SimpleNamespace(isatty=lambda: True))
    for new in (True, False):
        assert key_commands._passphrase(None, new=new) == PHRASE
        assert asked[-1] == {"hide_input": True, "confirmation_prompt": new}
