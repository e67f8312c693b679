"""More that a server tries with queries, and what becomes of one that a failure comes in between."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context
from numpy.typing import NDArray

from flhe.analytics import Real, Schema, answers, quantiles
from flhe.errors import ProtocolError, QuorumError, SumRangeError
from flhe.mods import query_app, records
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sash.scheme import Sash
from flhe.strategies import SecureSum
from tests.attacks.test_queries import MINE, NODES, Liar, code, errors, federation, liar, site
from tests.strategies.puppets import Puppets
from tests.strategies.test_secure_sum import Site, opened, pooled
from tests.strategies.test_secure_sum import federation as asked_of
from tests.strategies.variants import ALLOWED

__all__ = ["liar"]

pytestmark = pytest.mark.usefixtures("quick")

FIRST, SECOND = ConfigRecord({"seed": 1}), ConfigRecord({"seed": 2})


# --- a query after one that a failure came in between ---


def exact(grid: Puppets, total: Any, asked: ConfigRecord) -> None:
    """The total is that of all four sites, of this question and no other."""
    for part, values in pooled(range(4), asked).items():
        np.testing.assert_array_equal(opened(grid, total)[part], values)


@pytest.mark.parametrize("scheme", [Sash(), Sash("clients"), Esafl(), Flashe()], ids=str)
def test_a_sum_that_is_opened_late_is_no_other_querys(tmp_path: Path, scheme: Any) -> None:
    """That of one query is opened when the next is asked: each total is its own query's."""
    stage, there = ("unmask", 101) if scheme.opened_together else ("total", 100)
    with asked_of(tmp_path) as grid, SecureSum(grid, scheme, retries=0) as secure:
        grid.fate = lambda node, at, _: "dead" if at == stage and node > there else None
        with pytest.raises(QuorumError):
            secure.sum("numbers", FIRST)
        grid.fate = lambda *_: None
        exact(grid, secure.sum("numbers", SECOND), SECOND)
        exact(grid, secure.sum("numbers", FIRST), FIRST)


def test_a_crash_between_a_result_and_its_end_costs_the_next_query_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flhe.strategies.ledger import Ledger

    state = tmp_path / "state"
    with asked_of(tmp_path) as grid:
        with SecureSum(grid, Sash(), state_dir=state) as secure, monkeypatch.context() as patch:
            patch.setattr(Ledger, "done", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                secure.sum("numbers", FIRST)
        with SecureSum(grid, Sash(), state_dir=state, resume=True) as later:
            exact(grid, later.sum("numbers", SECOND), SECOND)
            exact(grid, later.sum("numbers", FIRST), FIRST)


@pytest.mark.parametrize("scheme", [Flashe(), Sash(unmask="clients")], ids=str)
def test_a_total_that_nobody_kept_outlives_a_new_contract(tmp_path: Path, scheme: Any) -> None:
    """Members have opened a sum, and the server stops before it keeps the box."""
    state = tmp_path / "state"
    with asked_of(tmp_path) as grid:
        grid.lost[1, "total"] = range(4)
        first = SecureSum(grid, scheme, state_dir=state, retries=0, max_queries=1)
        with first as secure, pytest.raises(QuorumError):
            secure.sum("numbers", FIRST)
        grid.lost.clear()
        for context in grid.contexts.values():
            context.run_config = {"queries": 9}
        again = SecureSum(grid, scheme, state_dir=state, retries=0, max_queries=9, resume=True)
        with again as later:
            exact(grid, later.sum("numbers", FIRST), FIRST)


@pytest.mark.parametrize("scheme", [Sash(), Flashe(), Sash(unmask="clients"), Esafl()], ids=str)
def test_a_sum_that_nobody_can_have_stops_no_other_query(tmp_path: Path, scheme: Any) -> None:
    """One site's answer takes it beyond 63 bits."""

    def found(partition: int, asked: ConfigRecord) -> Any:
        return {"n": [(1 << 62) if asked["seed"] == 1 and partition > 1 else partition]}

    with asked_of(tmp_path, Site(found)) as grid, SecureSum(grid, scheme, retries=0) as secure:
        for _ in range(2):
            with pytest.raises((SumRangeError, QuorumError)):
                secure.sum("numbers", FIRST)
        assert opened(grid, secure.sum("numbers", SECOND))["n"].tolist() == [6]


def test_a_set_is_given_up_more_than_once(tmp_path: Path) -> None:
    """Each time the query is asked under one more number."""
    with asked_of(tmp_path) as grid, SecureSum(grid, Sash()) as secure:
        grid.fate = lambda node, at, n: "dead" if at == "unmask" and n in (1, 2) else None
        total = secure.sum("numbers", FIRST)
        assert total.number == 3
        exact(grid, total, FIRST)


# --- two sums of one question ---


@pytest.mark.parametrize("shown", [100, 108], ids=["contributor", "bystander"])
def test_a_member_opens_no_sum_of_a_question_that_has_another_number(
    tmp_path: Path, shown: int
) -> None:
    """Two halves of the sites are asked under two numbers, and one member is shown both sums."""
    with asked_of(tmp_path, nodes=9) as grid, SecureSum(grid, Flashe()) as secure:
        one = Liar(grid, secure)
        sums = []
        for number, nodes in ((1, range(100, 104)), (2, range(104, 108))):
            total = one.added(one.ask("numbers", nodes, number), 4)
            confirms = list(one.fed.parameters.epoch.confirms)
            sums.append(one.opened(total, shown, confirms=confirms))
        assert not sums[0].has_error()
        assert code(sums[1]) == 1012
        assert "has another number here" in errors(grid, shown - 100)


@pytest.mark.parametrize("liar", [Flashe()], ids=str, indirect=True)
def test_what_was_opened_here_is_not_answered_again(liar: Liar) -> None:
    """Or who has not opened it, because it joined or was rolled back, would open a second sum."""
    total = liar.added(liar.ask("numbers", NODES, 1))
    for node in NODES[:3]:
        assert not liar.opened(total, node).has_error()
    for node, reply in liar.ask("numbers", NODES, 1, 1).items():
        assert reply.has_error() == (node != 103)


@pytest.mark.parametrize("liar", [Flashe()], ids=str, indirect=True)
def test_two_members_open_two_sums_of_a_question(liar: Liar) -> None:
    """It works where members open alone: docs/limits.md says so. The server has a box of each."""
    replies = liar.ask("numbers", NODES, 1)
    whole = liar.added(replies)
    fewer = liar.added({node: reply for node, reply in replies.items() if node != 103}, 3)
    assert not liar.opened(whole, 100).has_error()
    assert not liar.opened(fewer, 101).has_error()


@pytest.mark.parametrize("found", [[0, 0], MINE["numbers"]], ids=["nothing", "something"])
def test_digests_of_two_sums_do_not_tell_whether_a_site_makes_a_difference(
    tmp_path: Path, found: list[int]
) -> None:
    """The server opens no box. Equal digests told it that a site's answer is zero, or another's."""
    app = query_app({"numbers": site("numbers", lambda i: found if i > 1 else None)})
    with federation(tmp_path, app) as grid, SecureSum(grid, Flashe()) as secure:
        one = Liar(grid, secure)
        replies = one.ask("numbers", NODES, 1)
        sums = [{n: r for n, r in replies.items() if n != gone} for gone in (None, 102, 103)]
        told = [one.opened(one.added(s, 3), n) for s, n in zip(sums, NODES, strict=False)]
        assert len({reply.content[records.REPLY]["digest"] for reply in told}) == 3  # type: ignore[index]
        again = one.opened(one.added(sums[0]), 103)  # who opens the same sum says the same
        assert again.content[records.REPLY]["digest"] == told[0].content[records.REPLY]["digest"]  # type: ignore[index]


@pytest.mark.parametrize("liar", [Flashe()], ids=str, indirect=True)
def test_a_total_far_ahead_ends_no_federation(liar: Liar) -> None:
    """Numbers are on disk before a sum is decrypted, so one that nobody has made would be the last."""
    total = liar.added(liar.ask("numbers", NODES[1:], 1), 3)
    ahead = replace(total, slot=replace(total.slot, round=(1 << 32) - 1))
    confirms = list(liar.fed.parameters.epoch.confirms)
    refusal = code(liar.opened(ahead, 100, confirms=confirms))
    assert not liar.opened(total, 100).has_error()
    assert not any(reply.has_error() for reply in liar.ask("other", NODES, 2).values())
    assert refusal == 1014


# --- a site's own minimum ---


@pytest.mark.parametrize("scheme", [Sash(), Flashe()], ids=str)
def test_a_sites_own_minimum_holds_for_its_answer(tmp_path: Path, scheme: Any) -> None:
    """One site of seven wants all of them in a sum; the others, who set nothing, keep to it."""
    app = query_app({"numbers": site("numbers")})

    def seven(path: Path) -> Puppets:
        strict = {"flhe-min-contributors": 7}
        allowed = {**ALLOWED, "flhe-queries": "numbers"}
        return Puppets(path, 7, app, config=lambda i: allowed if i else {**allowed, **strict})

    with seven(tmp_path) as grid:
        with SecureSum(grid, scheme, min_nodes=7) as secure:  # whose members may open one of six
            assert secure._survey is not None
            assert set(secure._survey.members) == set(range(101, 107))
        assert "flhe-min-contributors" in errors(grid)
    how: dict[str, Any] = {"min_nodes": 7, "min_replies": 7, "retries": 0}
    with seven(tmp_path / "all") as grid, SecureSum(grid, scheme, **how) as secure:
        one = Liar(grid, secure)
        total = one.added(one.ask("numbers", range(100, 106), 1), 6)
        if scheme.opened_together:
            with pytest.raises(QuorumError, match="flhe/quorum"):
                one.agreement(total).sign()
        else:
            assert [code(one.opened(total, node)) for node in range(100, 106)] == [1011] * 6
        assert "opens none of fewer than 7" in errors(grid, 1)


# --- what members are told that they do not read ---


@pytest.mark.parametrize("liar", [Sash()], ids=str, indirect=True)
def test_a_server_that_reads_hands_no_app_a_total(liar: Liar) -> None:
    total = liar.added(liar.ask("numbers", NODES, 1))
    assert code(liar.opened(total, 100, liar.released(total))) == 1014
    assert "total.numbers" not in liar.grid.contexts[100].state


@pytest.mark.parametrize("liar", [Sash(unmask="clients")], ids=str, indirect=True)
def test_one_sites_app_may_be_handed_a_total_that_the_others_lack(liar: Liar) -> None:
    """It works: docs/limits.md says so. The others stand still, so the next sum is that site's."""

    def after(asked: ConfigRecord, context: Context) -> Any:
        found = MINE["other"] if "total.numbers" in context.state else [0]
        return records.from_numpy({"n": np.array(found)})

    liar.grid.app = query_app({"numbers": site("numbers"), "other": after})
    victim, helper = 103, 100
    for number, (name, shown) in enumerate((("numbers", victim), ("other", helper)), 1):
        total = liar.added(liar.ask(name, NODES, number))
        assert not liar.opened(total, shown, liar.released(total)).has_error()
    read: Any = liar.grid.contexts[helper].state["total.other"]
    assert records.to_numpy(read)["n"].tolist() == MINE["other"]


# --- statistics ---


def ages(partition: int, extra: int = 0) -> NDArray[np.float64]:
    """A site's column, of ten rows and some more."""
    return 20.0 * partition + np.arange(10 + extra * partition)


def hospitals(path: Path, nodes: int, extra: int = 0) -> Puppets:
    """Sites that answer statistics of their ages."""

    def load(context: Context) -> dict[str, Any]:
        return {"age": ages(int(str(context.node_config["partition-id"])), extra)}

    app = query_app(answers(AGES, load))
    return asked_of(path, None, nodes, app, **{"flhe-queries": "below, count"})


AGES = Schema(age=Real(0, 100))


def test_a_search_whose_sites_change_but_not_their_rows_is_refused(tmp_path: Path) -> None:
    """Five sites have as many rows each: one drops out, then another one."""
    with hospitals(tmp_path, 5) as grid:
        grid.unreached = {(1, "query"): [0], **{(n, "query"): [4] for n in range(2, 12)}}
        with SecureSum(grid, Sash(), min_nodes=5) as secure, pytest.raises(ProtocolError):
            quantiles(secure, AGES, "age", (0.5,))


def test_a_search_that_was_refused_can_be_made_again(tmp_path: Path) -> None:
    with hospitals(tmp_path, 4, extra=1) as grid:
        grid.unreached = {(1, "query"): [0]}
        with SecureSum(grid, Sash()) as secure:
            with pytest.raises(ProtocolError, match="cuts"):
                quantiles(secure, AGES, "age", (0.5,))
            rows = np.concatenate([ages(p, 1) for p in range(4)])
            found = quantiles(secure, AGES, "age", (0.5,), cuts=200)
            np.testing.assert_allclose(found, np.quantile(rows, 0.5), atol=1e-8)


def test_a_servers_text_makes_no_line_of_its_own_in_errors_log(tmp_path: Path) -> None:
    asked: Any = {"schema": AGES.hash(), "x\n2026-01-01T00:00:00Z forged\x1b[2J": 1}
    with hospitals(tmp_path, 4) as grid, SecureSum(grid, Sash(), retries=0) as secure:
        with pytest.raises(QuorumError):
            secure.sum("count", asked)
        assert "\n2026-01-01T00:00:00Z forged" not in errors(grid)
        assert "\x1b" not in errors(grid)
