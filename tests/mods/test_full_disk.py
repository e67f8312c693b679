"""A node whose disk fills up between two steps of a round, and two processes on one directory."""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flhe.mods.he_mod import LOCKS
from flhe.node import store
from flhe.schemes.flashe.adder import FlasheOpener
from flhe.training.session import Session
from flhe.wire import files
from tests.mods.harness import RUN, Group, Site, answer, dying, refused, update


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
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then nothing is decrypted, and the same sum opens once there is room."""
    site, total = group.sites[0], group.total()
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
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two SuperNodes on one state directory: the second is answered, not left waiting."""
    site, slept = group.sites[0], list[float]()
    ticks = itertools.count(0.0, 10.0)  # each look at the clock takes ten seconds
    clock = SimpleNamespace(monotonic=lambda: next(ticks), sleep=slept.append)
    handle = os.open(site.home / f"lock-{RUN % LOCKS}", os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with monkeypatch.context() as patch:
        patch.setattr(store, "time", clock)
        refused(group.ask(site), 1015)
    assert slept
    assert not site.app.seen
    assert "another process has held the state directory for 30 s" in site.log
    os.close(handle)
    update(group.ask(site))
