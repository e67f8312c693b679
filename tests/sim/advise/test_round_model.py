"""The round simulator: closed forms, laws, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe_lab.advise.round_model import Breakdown, Exchange, Work, simulate, typical
from flhe_lab.advise.wan import Link

MB = 1_000_000
LINK = Link(8, 16)  # 1 and 2 MB a second
WORK = Work(3.0, 0.5, 0.25, 0.0, 2 * MB, 2 * MB)
PARTS = ("train_s", "encrypt_s", "decrypt_s", "transfer_s", "idle_s", "server_s")


def parts(found: Breakdown) -> float:
    return sum(getattr(found, name) for name in PARTS)


def total(found: tuple[Breakdown, ...]) -> float:
    (seconds,) = {one.total_s for one in found}
    return seconds


def test_one_client() -> None:
    (found,) = simulate(replace(WORK, add_s=0.125), [LINK])
    assert found == Breakdown(3.0, 0.5, 0.25, 3.0, 0.0, 0.125, 6.875, 2 * MB, 2 * MB)


def test_the_server_adds_while_it_waits() -> None:
    """Uploads arrive at 1, 2 and 4 s; three seconds an addition: done at 4, 7 and 10."""
    work = Work(0, 0, 0, 3.0, MB, 0)
    found = simulate(work, [Link(8, 8), Link(4, 8), Link(2, 8)])
    assert total(found) == pytest.approx(10)
    assert [one.idle_s for one in found] == pytest.approx([3, 2, 0])
    assert [one.server_s for one in found] == pytest.approx([6, 6, 6])
    quick = simulate(replace(work, add_s=0.5), [Link(8, 8), Link(4, 8), Link(2, 8)])
    assert total(quick) == pytest.approx(4.5)


def test_every_message_pays_its_latency_and_exchanges_follow() -> None:
    far, server = Link(8, 16, 0.25), Link(math.inf, math.inf, 0.5)
    stages = (Exchange("shares", MB, 2 * MB, 0.25, 0.5), Exchange("word", 0, 0, 0, 0.125))
    for links, latency in (({}, 0.25), ({"server": server}, 0.75)):
        (bare,) = simulate(WORK, [far], **links)
        (found,) = simulate(replace(WORK, exchanges=stages), [far], **links)
        assert bare.transfer_s == pytest.approx(3.0 + 2 * latency)
        # A message of no bytes is none.
        assert found.transfer_s - bare.transfer_s == pytest.approx(1 + 1 + 2 * latency)
        assert found.decrypt_s - bare.decrypt_s == pytest.approx(0.25)
        assert found.server_s - bare.server_s == pytest.approx(0.625)
        assert (found.bytes_up, found.bytes_down) == (3 * MB, 4 * MB)


def test_preparation_hides_in_waiting() -> None:
    """Three seconds of transfers hide three; two more seconds of a slower client's, two more."""

    def seen(prepare_s: float, *, other: float = 0.0) -> tuple[float, float]:
        work = replace(WORK, prepare_s=prepare_s)
        links = [LINK, *([Link(8, 16, other / 2)] if other else [])]
        found = simulate(work, links)[0]
        return found.encrypt_s, found.total_s

    assert seen(3.0) == pytest.approx((0.5, 6.75))
    assert seen(4.0) == pytest.approx((1.5, 7.75))
    assert seen(4.0, other=2.0) == pytest.approx((0.5, 8.75))
    assert seen(5.0, other=2.0) == pytest.approx((0.5, 8.75))
    assert seen(6.0, other=2.0) == pytest.approx((3.5, 9.75))  # never idle now


def test_who_comes_later_takes_its_part() -> None:
    """Half a megabyte alone for 1 s, then both at half speed until the first is through."""
    work = Work(0, 0, 0, 0, MB, MB)
    found = simulate(work, [Link(8, 8), Link(8, 4)], server=Link(math.inf, 4))
    assert [one.transfer_s for one in found] == pytest.approx([1 + 3, 2 + 3])
    assert typical(found) in found
    assert typical(found).idle_s == 0


SECONDS = st.floats(0, 100)
BYTES = st.integers(0, 10**8)
SPEED = st.floats(0.5, 1e4)
LINKS = st.lists(st.builds(Link, SPEED, SPEED, st.floats(0, 1)), min_size=1, max_size=6)
EXCHANGES = st.lists(st.builds(Exchange, st.just("x"), BYTES, BYTES, SECONDS, SECONDS), max_size=2)
WORKS = st.builds(
    Work, SECONDS, SECONDS, SECONDS, SECONDS, BYTES, BYTES, EXCHANGES.map(tuple), SECONDS
)
SERVERS = st.none() | st.builds(Link, SPEED, SPEED)


@settings(max_examples=40)
@given(WORKS, LINKS, SERVERS, st.randoms(use_true_random=False))
def test_every_second_is_somewhere_in_any_order(
    work: Work, links: list[Link], server: Link | None, draw: object
) -> None:
    found = simulate(work, links, server=server)
    up = work.upload_bytes + sum(e.up_bytes for e in work.exchanges)
    down = work.download_bytes + sum(e.down_bytes for e in work.exchanges)
    for one in found:
        assert parts(one) == pytest.approx(total(found))
        assert min(astuple(one)) >= -1e-6
        assert (one.bytes_up, one.bytes_down) == (up, down)
    server_alone = work.add_s * len(links) + sum(e.server_s for e in work.exchanges)
    assert total(found) >= server_alone - 1e-6
    if server is not None:
        busy = max(up / server.down_mbps, down / server.up_mbps) * 8e-6 * len(links)
        assert total(found) >= busy * (1 - 1e-9)
    order = list(range(len(links)))
    draw.shuffle(order)  # type: ignore[attr-defined]
    moved = simulate(work, [links[i] for i in order], server=server)
    for at, i in enumerate(order):
        assert astuple(moved[at]) == pytest.approx(astuple(found[i]), rel=1e-9, abs=1e-6)


@settings(max_examples=40)
@given(WORKS, LINKS, SERVERS, st.floats(1, 10))
def test_faster_links_are_never_slower(
    work: Work, links: list[Link], server: Link | None, factor: float
) -> None:
    def faster(link: Link) -> Link:
        return Link(link.up_mbps * factor, link.down_mbps * factor, link.latency_s / factor)

    work = replace(work, prepare_s=0)
    free, shared = total(simulate(work, links)), total(simulate(work, links, server=server))
    assert total(simulate(work, [faster(links[0]), *links[1:]])) <= free * (1 + 1e-9)
    assert shared >= free * (1 - 1e-9)
    more = replace(work, upload_bytes=int(work.upload_bytes * factor))
    assert total(simulate(more, links, server=server)) >= shared * (1 - 1e-9)
    longer = replace(work, train_s=work.train_s * factor)
    assert total(simulate(longer, links)) >= free * (1 - 1e-9)


@settings(max_examples=40)
@given(WORKS, LINKS)
def test_a_processor_prepares_and_works_within_a_round(work: Work, links: list[Link]) -> None:
    """A round takes as long as without preparation, or the work of a client with it."""
    work = replace(work, add_s=0, exchanges=())
    busy = work.train_s + work.encrypt_s + work.decrypt_s + work.prepare_s
    without = total(simulate(replace(work, prepare_s=0), links))
    assert total(simulate(work, links)) == pytest.approx(max(busy, without))
