"""The stages in which a node signs one set of survivors, and releases its part of their seeds' sum."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from numpy.typing import NDArray

from flhe.keys.agreement import answers as unmasked
from flhe.keys.agreement import masking
from flhe.keys.agreement.circle import UNMASK, statement
from flhe.keys.agreement.epoch import Epoch
from flhe.mods import records
from flhe.mods import survivors as stages
from flhe.schemes.sash.scheme import Sash, SashOpener, SashSealer
from flhe.schemes.sealed import Sealed, Slot
from flhe.wire import files
from flhe.wire.canonical import dumps, loads
from tests.mods.harness import TERMS, App, Group, Site, answer, arrays, refused, update, wire
from tests.mods.masked import Masked, answer_in, signature_in

ALL, PAIR, OTHER = (0, 1, 2), (0, 1), (1, 2)
"""Sets of survivors among three members, two of whom are enough. Rank 1 is what is looked at."""
ME = 1
FLOATS = 13


@pytest.fixture
def group(tmp_path: Path) -> Masked:
    return Masked(tmp_path).agree()


@pytest.fixture
def dealt(tmp_path: Path) -> Masked:
    """Everybody has sent an update of round 1."""
    return uploaded(tmp_path)


def uploaded(path: Path, **how: Any) -> Masked:
    made = Masked(path, **how).agree()
    for rank in ALL:
        update(made.upload(rank))
    return made


def restart(group: Masked, rank: int = ME) -> None:
    """Nothing is left of the process but its directory."""
    old = group.sites[rank]
    group.sites[rank] = Site(old.home, rank, config=dict(old.context.node_config), app=App())


def disk(group: Masked, rank: int = ME) -> dict[str, bytes]:
    """What lasts, but for logs."""
    home = group.sites[rank].home
    found = (path for path in home.rglob("*") if path.is_file() and path.suffix != ".log")
    return {str(path.relative_to(home)): path.read_bytes() for path in found}


def opened(group: Masked, parts: Sequence[Sealed], answers: Sequence[bytes]) -> NDArray[np.int32]:
    """The integers that the server reads out of the sum of these updates."""
    scheme, total = group.terms.for_cohort(3), group.total(parts)
    assert isinstance(scheme, Sash)
    seed = unmasked.combine(group.circle, total.slot, total.senders, answers)
    return SashOpener(scheme, seed).decrypt(total)


def assert_moved(lanes: NDArray[np.int32], count: int = 3) -> None:
    """All apps here move every float by an eighth, on 10 examples of 100, in 15 bits and a sign."""
    np.testing.assert_allclose(lanes[:FLOATS] / (count * 0.1 * 32767), 0.125, atol=1e-3)


# --- a round, and its order ---


@pytest.mark.parametrize("chosen", [ALL, PAIR, (0, 2), OTHER])
def test_the_sum_of_those_who_survive(group: Masked, chosen: tuple[int, ...]) -> None:
    parts = [update(group.upload(rank)) for rank in ALL]
    signatures = group.signatures(chosen, chosen)
    answers = group.answers(chosen, signatures)
    lanes = opened(group, [parts[rank] for rank in chosen], answers)
    assert_moved(lanes, len(chosen))
    if len(chosen) == 3:  # two answers are enough
        assert np.array_equal(opened(group, parts, answers[1:]), lanes)


def test_a_node_without_an_epoch_signs_nothing(tmp_path: Path) -> None:
    group = Masked(tmp_path)
    for reply in (group.consist(ME, ALL), group.unmask(ME, {})):
        refused(reply, 1020)


@pytest.mark.parametrize("which", [{"round_": 2}, {"attempt": 1}, {"round_": 0}, {"attempt": -1}])
def test_a_round_that_is_not_the_last_one(dealt: Masked, which: dict[str, int]) -> None:
    inbox = [dealt.boxes[1, 0, u][ME] for u in ALL]
    refused(dealt.consist(ME, ALL, shares=inbox, **which), 1014)  # type: ignore[arg-type]
    signatures = dealt.signatures(ALL, ALL)
    refused(dealt.unmask(ME, signatures, **which), 1014)  # type: ignore[arg-type]
    answer_in(dealt.unmask(ME, signatures))


def test_a_round_is_over_when_the_next_is_encrypted(dealt: Masked) -> None:
    """Its shares are gone, so whoever gets at the disk finds those of one round."""
    signatures = dealt.signatures(ALL, ALL)
    kept = bytes(dealt.agreed(ME).share)
    update(dealt.upload(ME, round_=2))
    refused(dealt.consist(ME, ALL), 1014)
    refused(dealt.unmask(ME, signatures), 1014)
    assert not (dealt.sites[ME].run / "survivors").exists()
    assert not any(kept[:64] in data for data in disk(dealt).values())
    refused(dealt.upload(ME), 1022)


def test_sets_that_are_not_signed(dealt: Masked) -> None:
    before = disk(dealt)
    for chosen, code in (
        ((0, 2), 1014),  # without itself
        ((1,), 1011),
        ((1, 0), 1014),
        ((0, 1, 1 << 40), 1014),
    ):
        shares = [b""] * len(chosen)
        refused(dealt.consist(ME, (), survivors=list(chosen), shares=shares), code)
    assert disk(dealt) == before
    signature_in(dealt.consist(ME, ALL))


def test_shares_that_do_not_open(dealt: Masked) -> None:
    before = disk(dealt)
    good = [dealt.boxes[1, 0, u][ME] for u in ALL]
    for shares, whose in (
        ([good[2], b"", good[0]], [0, 2]),
        ([b"", b"", b""], [0, 2]),
        ([good[0], b"", good[2][:-1]], [2]),
        ([dealt.boxes[1, 0, 0][2], b"", good[2]], [0]),
    ):
        # Nothing is signed, and the server is told whom to ask.
        told = answer(dealt.consist(ME, ALL, shares=shares))
        assert {name: told[name] for name in set(told) - {"v"}} == {"step": "consist", "bad": whose}
    for shares in (good[:2], [*good, b""], []):
        refused(dealt.consist(ME, ALL, shares=shares), 1014)
    assert disk(dealt) == before
    signature_in(dealt.consist(ME, ALL, shares=[good[0], b"whatever", good[2]]))


def test_shares_of_another_attempt(dealt: Masked) -> None:
    """A seed that was shared in attempt 0 is no part of a sum of attempt 1."""
    update(dealt.upload(ME, attempt=1))
    old = [dealt.boxes[1, 0, u][ME] for u in ALL]
    assert answer(dealt.consist(ME, ALL, attempt=1, shares=old))["bad"] == [0, 2]
    refused(dealt.consist(ME, ALL, attempt=0), 1014)  # its own shares of then are gone
    for rank in (0, 2):
        update(dealt.upload(rank, attempt=1))
    signature_in(dealt.consist(ME, ALL, attempt=1))


MALFORMED: list[dict[str, Any]] = [
    {"survivors": "012"},
    {"survivors": [0.0, 1.0, 2.0]},
    {"survivors": [False, True]},
    {"shares": [1, 2, 3]},
    {"round": True},
    {"attempt": 0.0},
    {"terms": 5},
    {"confirms": [1]},
]


@pytest.mark.parametrize("fields", MALFORMED, ids=str)
def test_fields_that_are_something_else(dealt: Masked, fields: dict[str, Any]) -> None:
    before = disk(dealt)
    refused(dealt.consist(ME, ALL, **fields), 1014)
    assert disk(dealt) == before
    signatures = dealt.signatures(ALL, ALL)
    for old, new in (("survivors", "signers"), ("shares", "signatures")):
        fields = {new if name == old else name: value for name, value in fields.items()}
    refused(dealt.unmask(ME, signatures, **fields), 1014)


def test_another_epoch_or_other_terms(dealt: Masked) -> None:
    refused(dealt.consist(ME, ALL, epoch=bytes(16)), 1020)
    refused(dealt.consist(ME, ALL, terms=TERMS.to_bytes()), 1010)
    signatures = dealt.signatures(ALL, ALL)
    refused(dealt.unmask(ME, signatures, epoch=bytes(16)), 1020)
    refused(dealt.unmask(ME, signatures, terms=TERMS.to_bytes()), 1010)
    answer_in(dealt.unmask(ME, signatures, epoch=dealt.epoch(ME).id))


def test_a_scheme_without_masking_keys(tmp_path: Path) -> None:
    group = Group(tmp_path).agree()
    site = group.sites[0]
    assert not answer(group.ask(site)).get("shares")
    said = {"round": 1, "attempt": 0, "terms": group.terms.to_bytes()}
    refused(site.ask("consist", survivors=list(ALL), shares=[b"", b"", b""], **said), 1014)
    refused(site.ask("unmask", signers=[0], signatures=[b""], **said), 1014)


# --- one set a round ---


@pytest.mark.parametrize("unmask", ["server", "clients"])
def test_what_was_answered_is_answered_again(tmp_path: Path, unmask: Any) -> None:
    """By a process that knows nothing but its directory; and nothing else is."""
    group = uploaded(tmp_path, unmask=unmask)
    first = signature_in(group.consist(ME, ALL))
    before = disk(group)
    for _ in range(2):
        restart(group)
        assert signature_in(group.consist(ME, ALL)) == first
        for chosen in (PAIR, OTHER):
            refused(group.consist(ME, chosen), 1012)
    assert disk(group) == before
    signatures = group.signatures(ALL, ALL)
    told = [answer_in(group.unmask(ME, signatures))]
    for signers in (ALL, PAIR, OTHER, (2, 0)):
        restart(group)
        shown = {rank: signatures[rank] for rank in signers}
        told.append(answer_in(group.unmask(ME, shown)))
    refused(group.consist(ME, PAIR), 1012)
    assert disk(group) == before
    assert len(set(told)) == (1 if unmask == "server" else 5)  # sealed ones are in fresh boxes
    assert {share_in(group, each) for each in told} == {bytes(group.agreed(ME).share)}


def share_in(group: Masked, said: bytes) -> bytes:
    """The share in an answer, sealed or not."""
    sealed = group.terms.reader == "clients"
    epoch, slot = group.epoch(0), group.dealt(ME).slot
    rank, payload = unmasked.check_answer(group.circle, slot, ALL, said, sealed=sealed)
    if not sealed:
        return payload
    about = hashlib.sha256(statement(ALL)).digest()
    header = group.circle.header(slot, UNMASK, rank, about)
    return unmasked._open_group(epoch, slot, header, rank, payload)


def test_after_signing_a_lost_update_stays_lost(dealt: Masked) -> None:
    signature_in(dealt.consist(ME, ALL))
    (dealt.sites[ME].run / "outbox").unlink()
    refused(dealt.upload(ME), 1012)
    refused(dealt.upload(ME, attempt=1), 1012)


def test_shares_that_are_lost_are_not_made_again(dealt: Masked) -> None:
    (dealt.sites[ME].run / "shares").unlink()
    refused(dealt.upload(ME), 1014)
    answer(dealt.upload(ME, attempt=1))


def test_a_model_that_is_not_the_one_named(group: Masked) -> None:
    refused(group.upload(ME, history=bytes(32)), 1019)
    assert not group.sites[ME].app.seen


def new_epoch(group: Masked) -> None:
    group.number += 1
    group.agree()
    base = {"base": 0} if group.terms.reader == "server" else {}
    for site in group.sites:
        answer(group.ask(site, "sync", **base))  # type: ignore[arg-type]


@pytest.mark.parametrize("unmask", ["server", "clients"])
def test_nor_in_a_new_epoch(tmp_path: Path, unmask: Any) -> None:
    group = Masked(tmp_path, unmask=unmask).agree()
    for rank in ALL:
        update(group.upload(rank, round_=3))
    signature_in(group.consist(ME, ALL, round_=3))
    new_epoch(group)
    for round_, attempt in ((3, 0), (3, 1), (1, 0), (2, 5)):
        refused(group.upload(ME, round_=round_, attempt=attempt), 1012)
    new_epoch(group)
    refused(group.upload(ME, round_=3), 1012)  # nor in the one after that
    for rank in (0, 2):  # who signed nothing may send again
        assert answer(group.upload(rank, round_=3))["resent"] is False
    assert answer(group.upload(ME, round_=4))["resent"] is False


def test_a_new_epoch_ends_what_was_under_way(dealt: Masked) -> None:
    signatures = dealt.signatures(ALL, ALL)
    new_epoch(dealt)
    refused(dealt.consist(ME, ALL), 1014)
    refused(dealt.unmask(ME, signatures), 1014)


def test_the_kept_set_must_be_the_one_that_was_signed(dealt: Masked) -> None:
    """A file that somebody put there is not what the claim says."""
    slot, kept = dealt.dealt(ME).slot, dealt.sites[ME].run / "survivors"
    signature_in(dealt.consist(ME, ALL))
    other = masking.Agreed(slot, OTHER, bytes(dealt.agreed(ME).share))
    good = kept.read_bytes()
    kept.write_bytes(other.to_bytes())
    for chosen in (OTHER, ALL):
        shown = {rank: dealt.forged(rank, chosen, slot) for rank in chosen}
        refused(dealt.unmask(ME, shown), 1014)
    kept.write_bytes(good)
    answer_in(dealt.unmask(ME, {rank: dealt.forged(rank, ALL, slot) for rank in ALL}))


# --- copies and backups ---


def copied(group: Masked, place: Path) -> Masked:
    """The group, with a copy of the node's directory in its place."""
    shutil.copytree(group.sites[ME].home, place)
    group.sites[ME] = Site(place, ME)
    return group


def test_a_copy_signs_nothing(dealt: Masked, tmp_path: Path) -> None:
    original = dealt.sites[ME]
    copied(dealt, tmp_path / "copy")
    for chosen in (ALL, PAIR, OTHER):
        refused(dealt.consist(ME, chosen), 1020)
    slot = dealt.dealt(ME).slot
    for chosen in (ALL, OTHER):
        shown = {rank: dealt.forged(rank, chosen, slot) for rank in chosen}
        refused(dealt.unmask(ME, shown), 1014)
    refused(dealt.upload(ME, attempt=1), 1020)
    dealt.sites[ME] = original
    signature_in(dealt.consist(ME, ALL))


@pytest.mark.parametrize(
    "parts", [("epochs", "runs", "used"), ("epochs", "runs"), ("runs",), ("epochs",)]
)
def test_a_backup_from_before_signing_signs_nothing_else(
    dealt: Masked, tmp_path: Path, parts: tuple[str, ...]
) -> None:
    home = dealt.sites[ME].home
    shutil.copytree(home, tmp_path / "backup")
    first = signature_in(dealt.consist(ME, ALL))
    for part in parts:
        shutil.rmtree(home / part)
        shutil.copytree(tmp_path / "backup" / part, home / part)
    restart(dealt)
    for chosen in (PAIR, OTHER):
        assert dealt.consist(ME, chosen).error.code in (1012, 1020)
    assert dealt.upload(ME, attempt=1).error.code in (1012, 1020)
    again = dealt.consist(ME, ALL)
    assert again.has_error() or signature_in(again) == first


# --- crashes ---


class Crash(BaseException):
    """What no handler of ours sees."""


PRIMITIVES = ("create", "replace", "drop", "erase", "move")
"""All that changes what is kept: each of them happens or does not, but a new file may be cut short."""
HOWS = ("before", "after", "torn")


@contextmanager
def crashing(patch: pytest.MonkeyPatch, at: int, how: str) -> Iterator[list[str]]:
    """Stop at the change number `at`; gives the names of those that were begun."""
    begun: list[str] = []

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def run(path: Path, *rest: Any) -> Any:
            begun.append(name)
            if len(begun) - 1 != at:
                return real(path, *rest)
            if how == "after":
                real(path, *rest)
            if how == "torn" and name == "create":
                real(path, rest[0][: len(rest[0]) // 2])
            raise Crash

        return run

    with patch.context() as inner:
        for name in PRIMITIVES:
            inner.setattr(files, name, wrapped(name, getattr(files, name)))
        yield begun


def crashes(
    patch: pytest.MonkeyPatch, path: Path, work: Callable[[Masked], object], **how_: Any
) -> Iterator[tuple[Masked, str, str]]:
    """A group after each way in which its node's process may have ended in `work`."""
    for how in HOWS:
        for at in itertools.count():
            group = Masked(path / f"{how}-{at}", **how_).agree()
            for rank in (0, 2):
                update(group.upload(rank))
            if work is not upload:
                update(group.upload(ME))
            with crashing(patch, at, how) as begun:
                try:
                    work(group)
                except Crash:
                    pass
                else:
                    assert at > 0
                    assert at == len(begun)
                    break
            restart(group)
            yield group, begun[-1], how


def upload(group: Masked) -> Message:
    return group.upload(ME)


def sign_all(group: Masked) -> Message:
    return group.consist(ME, ALL)


class Seeds:
    """Which seed made which ciphertext, and which was shared when."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sealed: dict[bytes, bytes] = {}
        self.dealt: dict[bytes, bytes] = {}
        encrypt, deal = SashSealer.encrypt, masking.deal

        def noted(sealer: SashSealer, plain: Any, slot: Slot, **how: Any) -> Sealed:
            out = encrypt(sealer, plain, slot, **how)
            seed = sealer._seeds[slot].tobytes()
            assert seed not in self.sealed
            self.sealed[seed] = out.digest()
            return out

        def shared(epoch: Epoch, slot: Slot, seed: NDArray[np.uint64]) -> masking.Dealt:
            assert seed.tobytes() not in self.dealt
            self.dealt[seed.tobytes()] = slot.digest()
            return deal(epoch, slot, seed)

        patch.setattr(SashSealer, "encrypt", noted)
        patch.setattr(masking, "deal", shared)

    def total(self, parts: Sequence[Sealed]) -> list[int]:
        """The sum of the seeds of these ciphertexts."""
        seeds = [
            np.frombuffer(seed, "<u8").tolist()
            for part in parts
            for seed, digest in self.sealed.items()
            if digest == part.digest()
        ]
        assert len(seeds) == len(parts)
        return [sum(column) % (2**64 - 2**32 + 1) for column in zip(*seeds, strict=True)]


def test_a_crash_in_the_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No seed masks or is shared twice; what is sent is what was made, or what a later attempt made."""
    seeds, ways, lost = Seeds(monkeypatch), 0, 0
    for group, _, _ in crashes(monkeypatch, tmp_path, upload):
        ways += 1
        reply = group.upload(ME)
        attempt = int(reply.has_error())
        if attempt:
            refused(reply, 1022)
            lost += 1
            reply = group.upload(ME, attempt=1)
        again = group.upload(ME, attempt=attempt)
        assert update(again).digest() == update(reply).digest()
        parts = [update(group.upload(rank, attempt=attempt)) for rank in ALL]
        assert parts[ME].digest() == update(reply).digest()
        signatures = group.signatures(ALL, ALL, attempt=attempt)
        answers = group.answers(ALL, signatures, attempt=attempt)
        found = unmasked.combine(group.circle, parts[0].slot, ALL, answers)
        assert found.tolist() == seeds.total(parts)
        assert_moved(opened(group, parts, answers))
    assert ways > 12
    assert 0 < lost < ways


@pytest.mark.parametrize("then", ["same", "other", "unmask"])
def test_a_crash_while_signing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    """Never two sets. Where the claim was cut in two it signs none, and the others go on without it."""
    refusals, signed_first = [], 0
    for group, where, how in crashes(monkeypatch, tmp_path, sign_all):
        slot = group.dealt(ME).slot
        others = group.signatures((0, 2), ALL)
        told = {OTHER: {r: group.forged(r, OTHER, slot) for r in OTHER}, ALL: others}
        if then == "unmask":
            early = group.unmask(ME, others)
            if not early.has_error():
                signed_first += 1
                refused(group.consist(ME, OTHER), 1012)
        order = (OTHER, ALL) if then == "other" else (ALL, OTHER)
        replies = {chosen: group.consist(ME, chosen) for chosen in order}
        signed = {chosen for chosen, reply in replies.items() if not reply.has_error()}
        assert len(signed) <= 1
        for chosen, reply in replies.items():
            if chosen not in signed:
                assert reply.error.code in (1012, 1022)  # another set, or a claim cut in two
                assert group.unmask(ME, told[chosen]).has_error()
            else:
                assert signature_in(reply) == group.forged(ME, chosen, slot)
                answer_in(group.unmask(ME, told[chosen]))
        if not signed:
            refusals.append((where, how))
        # Whatever became of it, the round goes on with the same set.
        able = [rank for rank in ALL if rank != ME or signed == {ALL}]
        parts = [update(group.upload(rank)) for rank in ALL]
        answers = group.answers(able, others)
        assert_moved(opened(group, parts, answers))
    assert set(refusals) == {
        ("create", "after"),
        ("create", "torn"),
        ("replace", "before"),
        ("replace", "torn"),
    }
    assert then != "unmask" or signed_first > 0


def test_answering_changes_nothing(dealt: Masked, monkeypatch: pytest.MonkeyPatch) -> None:
    """So there is nothing that a crash could cut in two."""
    signatures = dealt.signatures(ALL, ALL)
    with crashing(monkeypatch, 0, "before") as begun:
        answer_in(dealt.unmask(ME, signatures))
    assert not begun


def test_the_claim_is_on_disk_before_a_signature_leaves(
    dealt: Masked, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[list[str]] = []
    real = stages.reply

    def noting(**fields: Any) -> Any:
        names.append(sorted(p.name for p in dealt.sites[ME].home.glob("used/*/*")))
        return real(**fields)

    monkeypatch.setattr(stages, "reply", noting)
    signature_in(dealt.consist(ME, ALL))
    assert names == [["1-0-3"]]


# --- leaving ---


def test_who_leaves_keeps_no_shares(dealt: Masked) -> None:
    signatures = dealt.signatures(ALL, ALL)
    site = dealt.sites[ME]
    own, total = bytes(dealt.dealt(ME).own), bytes(dealt.agreed(ME).share)
    assert any(own[:64] in data for data in disk(dealt).values())
    site.allow(flhe_leave=True)
    refused(dealt.unmask(ME, signatures), 1021)
    for name in ("shares", "survivors", "outbox"):
        assert not (site.run / name).exists()
    assert not any(own[:64] in d or total[:64] in d for d in disk(dealt).values())
    refused(dealt.consist(ME, ALL), 1021)
    site.allow(flhe_leave=False)
    refused(dealt.unmask(ME, signatures), 1020)
    refused(dealt.consist(ME, ALL), 1020)


# --- what leaves, and what is written down ---


def test_replies_hold_what_they_must(dealt: Masked) -> None:
    signed = dealt.consist(ME, ALL)
    assert set(signed.content) == {records.REPLY}
    assert set(answer(signed)) == {"v", "step", "signature", "crypto-s"}
    signatures = dealt.signatures(ALL, ALL)
    told = dealt.unmask(ME, signatures)
    assert set(told.content) == {records.REPLY}
    assert set(answer(told)) == {"v", "step", "answer", "crypto-s"}
    own, total = bytes(dealt.dealt(ME).own), bytes(dealt.agreed(ME).share)
    for reply in (signed, dealt.upload(ME)):
        assert own[:32] not in wire(reply)
        assert total[:32] not in wire(reply)
    assert total in answer_in(told)
    assert own[:32] not in answer_in(told)


def test_logs_hold_no_shares(dealt: Masked) -> None:
    """Also where a message was refused with everything at hand."""
    good = [dealt.boxes[1, 0, u][ME] for u in ALL]
    assert answer(dealt.consist(ME, ALL, shares=[good[2], b"", good[0]]))["bad"] == [0, 2]
    refused(dealt.consist(ME, ALL, shares=good[:2]), 1014)
    signatures = dealt.signatures(ALL, ALL)
    refused(dealt.consist(ME, PAIR), 1012)
    refused(dealt.unmask(ME, {r: bytes(64) for r in signatures}), 1013)
    home = dealt.sites[ME].home
    own, total = bytes(dealt.dealt(ME).own), bytes(dealt.agreed(ME).share)
    text = (home / "errors.log").read_bytes() + (home / "audit.log").read_bytes()
    for secret in (own, total, *good):
        for part in (secret[:16], repr(secret[:8])[2:-1].encode(), secret[:8].hex().encode()):
            assert not part or part not in text
    assert b"the shares of the members of ranks 0, 2 do not open" in text


def test_one_line_a_stage(dealt: Masked) -> None:
    signatures = dealt.signatures(ALL, ALL)
    refused(dealt.consist(ME, PAIR), 1012)
    answer_in(dealt.unmask(ME, signatures))
    refused(dealt.unmask(ME, {}), 1011)
    lines = (dealt.sites[ME].home / "audit.log").read_text().splitlines()
    told = [
        {name: line.get(name) for name in ("stage", "answer", "round", "attempt", "code", "epoch")}
        for line in map(json.loads, lines)
        if line["stage"] in ("consist", "unmask")
    ]
    common = {"round": 1, "attempt": 0, "code": None, "epoch": dealt.epoch(ME).id[:4].hex()}
    assert told == [
        {**common, "stage": "consist", "answer": "survivors"},
        {**common, "stage": "consist", "answer": "refused", "code": 1012},
        {**common, "stage": "unmask", "answer": "release"},
        {**common, "stage": "unmask", "answer": "refused", "code": 1011},
    ]


# --- who reads ---


def test_members_open_the_sum_with_what_was_released(tmp_path: Path) -> None:
    group = Masked(tmp_path, unmask="clients").agree()
    parts = [update(group.upload(rank)) for rank in ALL]
    answers = group.answers(ALL, group.signatures(ALL, ALL))
    total, packed = group.total(parts), unmasked.pack(answers)
    site = group.sites[ME]
    spoilt = loads(answers[0], 1 << 20, "")
    spoilt[1] = spoilt[1][:-1] + bytes([spoilt[1][-1] ^ 1])
    for release, code in (
        (unmasked.pack(answers[:1]), 1011),
        (unmasked.pack([answers[0], answers[0]]), 1014),
        (unmasked.pack([dumps(spoilt), *answers[1:]]), 1013),
        (b"\xff", 1014),
        (b"", 1011),
    ):
        refused(group.evaluate(site, total, releases=[release]), code)
        assert site.model.round == 0
    answer(group.evaluate(site, total, releases=[packed]))
    found = site.model.arrays()
    np.testing.assert_allclose(found["w"], arrays()["w"] + 0.125, atol=1e-3)
    assert found["steps"] == 11
    refused(group.upload(ME, attempt=1), 1014)  # that round is behind it
