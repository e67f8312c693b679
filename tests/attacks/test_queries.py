"""A server that asks queries to learn what a single site answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from flhe.coding.quantize import Quantize
from flhe.errors import QuorumError
from flhe.keys.agreement.answers import pack
from flhe.mods import bounded, query_app, records
from flhe.schemes.base import Scheme
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sash.scheme import Sash
from flhe.schemes.sealed import Sealed
from flhe.strategies import SecureSum
from flhe.strategies.exchange import Exchange
from flhe.strategies.masking_agreement import MaskingAgreement
from flhe.training.query import QUERY, AnswerForm, Part, Query
from tests.patience import PATIENCE_S
from tests.strategies.puppets import Puppets
from tests.strategies.variants import ALLOWED

pytestmark = pytest.mark.usefixtures("quick")

LISTED = "numbers, other"
SCHEMES = [Flashe(), Sash(unmask="clients"), Sash(), Esafl()]
MINE = {"numbers": [4711, 5], "other": [1]}
"""What every site answers."""


def site(name: str, change: Callable[[int], Any] | None = None) -> Callable[..., ArrayRecord]:
    """A site's answer to a query; `change` says what a partition finds instead."""

    def answer(asked: ConfigRecord, context: Context) -> ArrayRecord:
        partition = int(str(context.node_config["partition-id"]))
        found = None if change is None else change(partition)
        values = np.array(MINE[name] if found is None else found)
        return records.from_numpy({"n": values})

    return answer


def federation(path: Path, app: Any = None, **config: Any) -> Puppets:
    """Four sites that list two queries."""
    allowed = {**ALLOWED, "flhe-queries": LISTED, **config}
    return Puppets(path, 4, app or query_app({n: site(n) for n in MINE}), config=lambda _: allowed)


class Liar:
    """A server that speaks the protocol, and chooses what it asks of whom."""

    def __init__(self, grid: Puppets, secure: SecureSum) -> None:
        assert secure._survey is not None
        self.grid, self.secure, self.fed = grid, secure, secure._survey

    def ask(
        self, name: str, nodes: Any, number: int, attempt: int = 0, **parameters: Any
    ) -> dict[int, Message]:
        """What these nodes reply to a query."""
        fed = self.fed
        fed.query, fed.forms = Query.of(name, parameters), {}
        fed.begin(number, attempt)
        replies = fed.grid.send_and_receive(fed.questions(list(nodes)), timeout=PATIENCE_S)
        return {fed.grid.node_of(reply): reply for reply in replies}

    def added(self, replies: Mapping[int, Message], needed: int = 2) -> Sealed:
        """The sum of what some replied."""
        total, _ = Exchange(self.fed, needed).add_whole(QUERY, list(replies.values()))
        self.fed.note(total)
        return total

    def opened(self, total: Sealed, node: int, release: bytes = b"", **changed: Any) -> Message:
        """What a member replies that is shown a sum to be opened."""
        fed = self.fed
        assert fed.query is not None
        (form,) = fed.forms.values()
        fields = {
            "query": fed.query.to_bytes(),
            "form": form.to_bytes(),
            "header": total.header(),
            "release": release,
            **changed,
        }
        content = RecordDict({records.STAGE: fed.stage("total", True, **fields)})
        content[records.SUM] = records.from_sealed(total)
        (reply,) = fed.grid.send_and_receive([Message(content, node, "train")], timeout=PATIENCE_S)
        return reply

    def agreement(self, total: Sealed) -> MaskingAgreement:
        """What opens a sum where members open it together."""
        return MaskingAgreement(self.fed, self.fed.adder, total, self.secure.settings)

    def released(self, total: Sealed) -> bytes:
        """What its members release once they have signed it."""
        agreement = self.agreement(total)
        agreement.sign()
        return pack(agreement.unmask())


@pytest.fixture
def liar(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Liar]:
    scheme: Scheme = getattr(request, "param", Flashe())
    with federation(tmp_path) as grid, SecureSum(grid, scheme) as secure:
        yield Liar(grid, secure)


def code(reply: Message) -> int:
    assert reply.has_error()
    return reply.error.code


def errors(grid: Puppets, index: int = 0) -> str:
    return (grid.homes[index] / "errors.log").read_text()


NODES = (100, 101, 102, 103)
every = pytest.mark.parametrize("liar", SCHEMES, ids=str, indirect=True)


# --- two sets of contributors to one question: their difference is one site's answer ---


@every
def test_a_question_has_one_number(liar: Liar) -> None:
    """Asked again under another one, over other sites, it would give a second sum."""
    liar.ask("numbers", NODES[:3], 1)
    for node, reply in liar.ask("numbers", NODES[1:], 2).items():
        if node != 103:
            together = liar.fed.terms.scheme.opened_together
            assert reply.has_error() != together  # then it signs one set of both
            assert together or code(reply) == 1012
    liar.ask("other", NODES, 3)
    for reply in liar.ask("numbers", NODES, 4).values():
        assert code(reply) == 1012
    assert "was answered here as number" in errors(liar.grid, 1)


@pytest.mark.parametrize("liar", [Flashe()], ids=str, indirect=True)
def test_members_open_one_sum_of_a_question(liar: Liar) -> None:
    """Of two attempts at it, whose senders differ."""
    first, second = (liar.ask("numbers", NODES, 1, attempt) for attempt in (0, 1))
    whole = liar.added(second)
    assert not liar.opened(whole, 100).has_error()
    assert not liar.opened(whole, 100).has_error()  # the same one again
    fewer = liar.added({node: reply for node, reply in second.items() if node != 103}, 3)
    assert code(liar.opened(fewer, 100)) == 1012
    liar.fed.begin(1, 0)
    assert code(liar.opened(liar.added(first), 100)) == 1012
    assert "was opened before" in errors(liar.grid)


@pytest.mark.parametrize("liar", [Sash(), Sash(unmask="clients"), Esafl()], ids=str, indirect=True)
@pytest.mark.parametrize("number", [1, 2], ids=["another attempt", "another number"])
def test_members_sign_one_set_of_a_question(liar: Liar, number: int) -> None:
    total = liar.added(liar.ask("numbers", NODES, 1))
    liar.agreement(total).sign()
    for reply in liar.ask("numbers", NODES[:3], number, 2 - number).values():
        assert code(reply) == 1012
    assert "may be opened" in errors(liar.grid) or "were signed here" in errors(liar.grid)


def test_a_new_epoch_asks_no_question_again(tmp_path: Path) -> None:
    """Members agree on new keys; what they have answered stays answered."""
    with federation(tmp_path) as grid, SecureSum(grid, Flashe()) as secure:
        liar = Liar(grid, secure)
        for number, name in enumerate(("numbers", "other"), 1):
            liar.ask(name, NODES, number)
        liar.fed.membership.asked = True
        secure._epochs.prepare(3)
        for number in (1, 2, 3):
            for reply in liar.ask("numbers", NODES[:3], number, 7).values():
                assert code(reply) == 1012


# --- what a site answers, and how often ---


def test_what_is_not_on_the_list_is_not_answered(tmp_path: Path) -> None:
    app = query_app({"numbers": site("numbers"), "unlisted": site("other")})
    with federation(tmp_path, app) as grid, SecureSum(grid, Sash(), retries=0) as secure:
        for name in ("unlisted", "nobody-has-it"):
            with pytest.raises(QuorumError, match="flhe/policy"):
                secure.sum(name)
        assert "query 'unlisted' is not among those that this site answers" in errors(grid)
        assert secure.sum("numbers").contributors == 4


def test_a_site_that_lists_none_joins_no_such_federation(tmp_path: Path) -> None:
    with federation(tmp_path, **{"flhe-queries": ""}) as grid:
        with pytest.raises(QuorumError, match="flhe/policy"):
            SecureSum(grid, Sash()).__enter__()
        assert "this site answers none" in errors(grid)


def test_a_site_answers_so_many_queries_and_no_more(tmp_path: Path) -> None:
    with federation(tmp_path, **{"flhe-max-queries": 2}) as grid:
        with SecureSum(grid, Sash(), retries=0) as secure:
            for seed in (0, 1, 1):  # which it knows
                secure.sum("numbers", {"seed": seed})
            with pytest.raises(QuorumError, match="flhe/policy"):
                secure.sum("numbers", {"seed": 2})
        assert "raise flhe-max-queries" in errors(grid)


@pytest.mark.parametrize("scheme", [Sash(), Flashe()], ids=str)
def test_a_sum_of_few_is_not_opened(tmp_path: Path, scheme: Scheme) -> None:
    with federation(tmp_path, **{"flhe-min-contributors": 4}) as grid:
        grid.unreached[1, "query"] = [3]
        with SecureSum(grid, scheme, retries=0, min_replies=4) as secure:
            with pytest.raises(QuorumError):
                secure.sum("numbers")
            liar = Liar(grid, secure)
            total = liar.added(liar.ask("other", NODES[:3], 2), 3)
            if scheme.opened_together:
                with pytest.raises(QuorumError, match="flhe/quorum"):
                    liar.agreement(total).sign()
            else:
                assert code(liar.opened(total, 100)) == 1011
        assert "flhe-min-contributors" in errors(grid)


# --- answers that spoil a sum, or its asker ---

SPOILT: dict[str, tuple[Callable[[int], Any], int]] = {
    "NaN": (lambda p: [math.nan, 0.0] if p == 3 else [0.5, 0.5], 1027),
    "beyond its bound": (lambda p: [9e9, 0.0] if p == 3 else [0.5, 0.5], 1016),
    "64 bits": (lambda p: np.array([1 << 63, 1], np.uint64) if p == 3 else [1, 1], 1016),
    "the least of 64 bits": (lambda p: [-(1 << 63), 1] if p == 3 else [1, 1], 1016),
    "text": (lambda p: ["one", "two"] if p == 3 else [1, 1], 1018),
}


@pytest.mark.parametrize("case", SPOILT)
def test_an_answer_that_is_no_number_stays_at_its_site(tmp_path: Path, case: str) -> None:
    found, refusal = SPOILT[case]
    app = query_app({"numbers": bounded(site("numbers", found), 1e6)})
    with federation(tmp_path, app) as grid, SecureSum(grid, Sash()) as secure:
        assert secure.sum("numbers").contributors == 3
        (told,) = {r.error.code for n, s, r in grid.replies if s == "query" and r.has_error()}
        assert told == refusal
        assert "flhe.errors." in errors(grid, 3)


def test_floats_of_no_declared_bound_stay_at_their_site(tmp_path: Path) -> None:
    app = query_app({"numbers": site("numbers", lambda _: [0.5])})
    with federation(tmp_path, app) as grid, SecureSum(grid, Sash(), retries=0) as secure:
        with pytest.raises(QuorumError, match="flhe/reply"):
            secure.sum("numbers")
        assert "declared bound" in errors(grid)


@pytest.mark.parametrize("scheme", [Sash(), Flashe()], ids=str)
def test_who_answers_in_another_form_is_named_and_left_out(
    tmp_path: Path, scheme: Scheme, caplog: pytest.LogCaptureFixture
) -> None:
    app = query_app({"numbers": site("numbers", lambda p: [1, 2, 3] if p == 1 else [1, 2])})
    with federation(tmp_path, app) as grid, SecureSum(grid, scheme) as secure:
        assert secure.sum("numbers").contributors == 3
    (named,) = {line for line in caplog.messages if "left out" in line}
    assert named.startswith("query: node 101 is left out: its answer has another form")


def test_a_length_that_its_form_does_not_say_is_refused(tmp_path: Path) -> None:
    def longer(node: int, reply: Message) -> None:
        answer = reply.content.config_records[records.REPLY]
        form = AnswerForm((Part("n", (3,)),))
        answer["form"], answer["digest"] = form.to_bytes(), form.hash()

    with federation(tmp_path) as grid, SecureSum(grid, Sash()) as secure:
        assert grid.lies([102], "query", longer) == []
        assert secure.sum("numbers").contributors == 3


# --- a server that shows members another sum ---


def test_a_total_is_not_opened_as_that_of_another_question(liar: Liar) -> None:
    total = liar.added(liar.ask("numbers", NODES, 1))
    other = Query.of("other", {}).to_bytes()
    assert code(liar.opened(total, 100, query=other)) == 1014
    assert code(liar.opened(total, 100, query=Query.of("unlisted", {}).to_bytes())) == 1010
    before = liar.opened(total, 100)
    assert not before.has_error()
    liar.added(liar.ask("other", NODES, 2))
    assert code(liar.opened(total, 100)) == 1014  # replayed as what the second one adds up to
    assert "belongs to another run, epoch, parameter set" in errors(liar.grid)


def test_a_total_that_was_changed_is_not_opened(liar: Liar) -> None:
    replies = liar.ask("numbers", NODES, 1)
    total = liar.added(replies)
    data = total.data.copy()
    data[0] ^= 1
    assert code(liar.opened(replace(total, data=data), 100)) == 1023
    assert "does not match what its 4 senders" in errors(liar.grid)


def test_what_one_member_says_of_a_total_is_not_believed(tmp_path: Path) -> None:
    """It seals another result than the rest opened; of others, two must seal the same."""

    def change(node: int, reply: Message) -> None:
        pieces = map(bytes, records.to_pieces(reply.content.array_records[records.BOX]))
        reply.content[records.BOX] = records.from_pieces([*pieces, node.to_bytes(2, "big")])

    with federation(tmp_path) as grid, SecureSum(grid, Flashe()) as secure:
        for liars, opens in (([100], True), ([100, 101], True), ([100, 101, 102], False)):
            grid.forge = lambda node, stage, reply: reply
            assert grid.lies(liars, "total", change) == []
            asked = {"liars": len(liars)}
            if opens:
                box = secure.sum("numbers", asked).arrays
                data = b"".join(records.to_pieces(ArrayRecord(dict(box))))
                assert data[-2:] not in {node.to_bytes(2, "big") for node in liars}
            else:
                with pytest.raises(QuorumError, match="1 members say the same of its sum, 2 need"):
                    secure.sum("numbers", asked)


# --- what anybody sees of it ---


def test_logs_name_each_query_and_nothing_of_its_answer(tmp_path: Path) -> None:
    with federation(tmp_path) as grid, SecureSum(grid, Sash()) as secure:
        secure.sum("numbers", {"since": "2020-01-01", "bins": 3})
    log = (grid.homes[0] / "audit.log").read_text()
    assert r'"query":"numbers {\"bins\": 3, \"since\": \"2020-01-01\"}"' in log
    assert "4711" not in log
    assert not (grid.homes[0] / "errors.log").exists()


def encodings(number: int) -> set[bytes]:
    """A number as it might travel in clear: of each width, as text, and in the digits of `Quantize`."""
    found = {number.to_bytes(size, order) for size in (6, 8) for order in ("little", "big")}  # type: ignore[arg-type]
    found |= {str(number).encode(), f"{number:x}".encode(), np.float64(number).tobytes()}
    for bits in (16, 24, 32):
        digits = Quantize(bits).split(np.array([number], np.int64))
        found |= {digits.astype(kind).tobytes() for kind in (digits.dtype, np.int64, ">i4")}
    return found


@pytest.mark.parametrize("scheme", [Flashe(), Sash(), Sash(unmask="clients")], ids=str)
def test_nothing_of_an_answer_is_on_the_wire(tmp_path: Path, scheme: Scheme) -> None:
    """Each site's numbers are searched for, in all that passes; what is planted is found."""
    secrets = [[0x1234_5678_9ABC + 7919 * p, 0x7AB_CDEF_0123 * (p + 1)] for p in range(4)]
    patterns = [pattern for own in secrets for n in own for pattern in encodings(n)]
    app = query_app({"numbers": site("numbers", secrets.__getitem__)})
    for planted in (None, 0, 3):
        blobs: list[bytes] = []
        with federation(tmp_path / str(planted), app) as grid:
            grid.tap = lambda _way, _node, content, kept=blobs: kept.append(content)
            with SecureSum(grid, scheme) as secure:
                told = "" if planted is None else str(secrets[planted][1])
                secure.sum("numbers", {"planted": told})
        found = {pattern for pattern in patterns if any(pattern in blob for blob in blobs)}
        assert found == ({told.encode()} if told else set())
        assert len(blobs) > 40
