"""The stages in which a node signs one set of survivors, and releases its part of their seeds' sum.

That it signs one set a round, whatever it is asked and in whatever order, is shown in
tests/keys/test_masking_model.py; here, what else may come, and what is on disk when.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from numpy.typing import NDArray

from flhe.keys.agreement import masking
from flhe.keys.agreement.answers import combine
from flhe.schemes.sash.adder import SashAdder, SashOpener
from flhe.schemes.sealed import Sealed
from flhe.wire import files
from tests.mods.harness import FLOATS, Group, Site, answer, refused, update
from tests.mods.masked import Masked, answer_in, signature_in

ALL, PAIR, OTHER = (0, 1, 2), (0, 1), (1, 2)
"""Sets of survivors among three members, two of whom are enough. Rank 1 is what is looked at."""
ME = 1


@pytest.fixture
def dealt(tmp_path: Path) -> Masked:
    """Everybody has sent an update of round 1."""
    return Masked(tmp_path).agree().uploaded()


def disk(group: Masked) -> dict[str, bytes]:
    """What lasts, but for logs."""
    home = group.sites[ME].home
    found = (path for path in home.rglob("*") if path.is_file() and path.suffix != ".log")
    return {str(path.relative_to(home)): path.read_bytes() for path in found}


def secrets(group: Masked) -> tuple[bytes, bytes]:
    """The share that a node keeps of its own seed, and the sum of those of a set."""
    return bytes(group.dealt(ME).own), bytes(group.agreed(ME).share)


def opened(group: Masked, parts: Sequence[Sealed], answers: Sequence[bytes]) -> NDArray[np.int32]:
    """The integers that the server reads out of the sum of these updates.

    All apps here move every float by an eighth, on 10 examples of 100, in 15 bits and a sign.
    """
    adder, total = group.terms.for_cohort(3), group.total(parts)
    assert isinstance(adder, SashAdder)
    seed = combine(group.circle, total.slot, total.senders, answers)
    lanes = SashOpener(adder, seed).decrypt(total)
    moved = lanes[:FLOATS] / (len(parts) * 0.1 * 32767)
    np.testing.assert_allclose(moved, 0.125, atol=1e-3)
    return lanes


# --- a round, and its order ---


def test_a_node_without_masking_keys_signs_nothing(group: Group, site: Site) -> None:
    assert not answer(group.ask(site)).get("shares")
    said = {"round": 1, "attempt": 0, "terms": group.terms.to_bytes()}
    refused(site.ask("consist", survivors=list(ALL), shares=[b""] * 3, **said), 1014)
    refused(site.ask("unmask", signers=[0], signatures=[b""], **said), 1014)


def test_a_round_is_over_when_the_next_is_encrypted(dealt: Masked) -> None:
    """Its shares are gone, so whoever gets at the disk finds those of one round."""
    signatures = dealt.signatures(ALL, ALL)
    kept = secrets(dealt)[1]
    void = dealt.voided((0, 2), dealt.dealt(ME).slot, dealt.circle)
    update(dealt.upload(ME, round_=2, voids=[void.to_bytes()]))
    refused(dealt.consist(ME, ALL), 1014)
    refused(dealt.unmask(ME, signatures), 1014)
    assert "survivors" not in dealt.sites[ME].files
    assert not any(kept[:64] in data for data in disk(dealt).values())
    refused(dealt.upload(ME), 1022)


# --- one set a round ---


@pytest.mark.parametrize("lost", ["outbox", "shares"])
def test_an_update_that_is_lost_in_part_is_not_made_again(dealt: Masked, lost: str) -> None:
    if lost == "outbox":
        signature_in(dealt.consist(ME, ALL))
    (dealt.sites[ME].run / lost).unlink()
    refused(dealt.upload(ME), 1012 if lost == "outbox" else 1014)
    if lost == "outbox":  # after signing there is no other attempt either
        refused(dealt.upload(ME, attempt=1), 1012)
    else:
        answer(dealt.upload(ME, attempt=1))


def test_the_kept_set_must_be_the_one_that_was_signed(dealt: Masked) -> None:
    """A file that somebody put there is not what the claim says."""
    slot, kept = dealt.dealt(ME).slot, dealt.sites[ME].run / "survivors"
    signature_in(dealt.consist(ME, ALL))
    other = masking.Agreed(slot, OTHER, secrets(dealt)[1])
    good = kept.read_bytes()
    kept.write_bytes(other.to_bytes())
    for chosen in (OTHER, ALL):
        refused(dealt.unmask(ME, {r: dealt.forged(r, chosen, slot) for r in chosen}), 1014)
    kept.write_bytes(good)
    answer_in(dealt.unmask(ME, {r: dealt.forged(r, ALL, slot) for r in ALL}))


# --- crashes ---


class Crash(BaseException):
    """What no handler of ours sees."""


PRIMITIVES = ("replace", "exchange", "erase", "move")
"""All that changes what is kept: each of them happens or does not."""


def stopping(at: int, begun: list[int], real: Callable[..., Any]) -> Callable[..., Any]:
    """A change that stops once `at` were begun."""

    def run(*args: Any, **more: Any) -> Any:
        begun.append(at)
        if len(begun) > at:
            raise Crash
        return real(*args, **more)

    return run


def crashes(
    monkeypatch: pytest.MonkeyPatch, path: Path, work: Callable[[Masked], Message]
) -> Iterator[Masked]:
    """A group after each way in which its node's process may have ended in `work`."""
    first = Masked(path / "first").agree()
    for rank in (0, 2) if work is upload else ALL:
        update(first.upload(rank))
    for at in itertools.count():
        group, begun = first.copied(path / f"{at}"), list[int]()
        with monkeypatch.context() as patch, suppress(Crash):
            for name in PRIMITIVES:
                patch.setattr(files, name, stopping(at, begun, getattr(files, name)))
            work(group)
        yield group
        if at == len(begun):  # all was done, and its reply was lost
            break


def upload(group: Masked) -> Message:
    return group.upload(ME)


def test_a_crash_in_the_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent is what was made, or what a later attempt made, with the shares of its seed."""
    ways, lost = 0, 0
    for group in crashes(monkeypatch, tmp_path, upload):
        ways += 1
        reply = group.upload(ME)
        attempt = int(reply.has_error())
        if attempt:
            refused(reply, 1022)
            lost += 1
            reply = group.upload(ME, attempt=1)
        parts = [update(group.upload(rank, attempt=attempt)) for rank in ALL]
        assert parts[ME].digest() == update(reply).digest()
        signatures = group.signatures(ALL, ALL, attempt=attempt)
        opened(group, parts, group.answers(ALL, signatures, attempt=attempt))
    assert ways > 6
    assert 0 < lost < ways


@pytest.mark.parametrize("then", ["other", "unmask"])
def test_a_crash_while_signing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    """One set, and never two, wherever it crashed."""
    signed_first = 0
    for group in crashes(monkeypatch, tmp_path, lambda group: group.consist(ME, ALL)):
        slot = group.dealt(ME).slot
        others = group.signatures((0, 2), ALL)
        told = {OTHER: {r: group.forged(r, OTHER, slot) for r in OTHER}, ALL: others}
        if then == "unmask" and not group.unmask(ME, others).has_error():
            signed_first += 1
            refused(group.consist(ME, OTHER), 1012)
        order = (OTHER, ALL) if then == "other" else (ALL, OTHER)
        replies = {chosen: group.consist(ME, chosen) for chosen in order}
        signed = {chosen for chosen, reply in replies.items() if not reply.has_error()}
        assert len(signed) == 1
        for chosen, reply in replies.items():
            if chosen not in signed:
                refused(reply, 1012)
                assert group.unmask(ME, told[chosen]).has_error()
            else:
                assert signature_in(reply) == group.forged(ME, chosen, slot)
                answer_in(group.unmask(ME, told[chosen]))
        # Whatever became of it, the round goes on with the same set.
        able = [rank for rank in ALL if rank != ME or signed == {ALL}]
        parts = [update(group.upload(rank)) for rank in ALL]
        opened(group, parts, group.answers(able, others))
    assert then != "unmask" or signed_first > 0


# --- what leaves, and what is written down ---


def test_who_leaves_keeps_no_shares(dealt: Masked) -> None:
    signatures, site = dealt.signatures(ALL, ALL), dealt.sites[ME]
    own, total = secrets(dealt)
    assert any(own[:64] in data for data in disk(dealt).values())
    site.allow(flhe_leave=True)
    refused(dealt.unmask(ME, signatures), 1021)
    assert not {"shares", "survivors", "outbox", "draft"} & set(site.files)
    assert not any(own[:64] in d or total[:64] in d for d in disk(dealt).values())
    refused(dealt.consist(ME, ALL), 1021)
    site.allow(flhe_leave=False)
    refused(dealt.unmask(ME, signatures), 1020)
    refused(dealt.consist(ME, ALL), 1020)


def test_logs_hold_one_line_a_stage_and_no_shares(dealt: Masked) -> None:
    """Also where a message was refused with everything at hand."""
    good, home = dealt.inbox(ME, ALL), dealt.sites[ME].home
    assert answer(dealt.consist(ME, ALL, shares=[good[2], b"", good[0]]))["bad"] == [0, 2]
    signatures = dealt.signatures(ALL, ALL)
    refused(dealt.consist(ME, PAIR), 1012)
    answer_in(dealt.unmask(ME, signatures))
    refused(dealt.unmask(ME, {r: bytes(64) for r in signatures}), 1013)
    audit = (home / "audit.log").read_text()
    text = (home / "errors.log").read_bytes() + audit.encode()
    for secret in (*secrets(dealt), *good):
        for part in (secret[:16], repr(secret[:8])[2:-1].encode(), secret[:8].hex().encode()):
            assert not part or part not in text
    assert b"the shares of the members of ranks 0, 2 do not open" in text
    names = ("stage", "answer", "round", "attempt", "code", "epoch")
    lines = [line for line in map(json.loads, audit.splitlines()) if line["stage"] != "round"]
    told = [tuple(line.get(name) for name in names) for line in lines]
    common = (1, 0, None, dealt.sites[ME].epoch.id[:4].hex())
    assert told[-4:] == [
        ("consist", "survivors", *common),
        ("consist", "refused", 1, 0, 1012, common[-1]),
        ("unmask", "release", *common),
        ("unmask", "refused", 1, 0, 1013, common[-1]),
    ]
