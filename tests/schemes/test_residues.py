"""Random n-th residues: the definition, every fault, and child processes."""

from __future__ import annotations

import logging
import secrets
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from flhe.errors import FaultError, FlheError
from flhe.schemes.batchcrypt import lanes, residue_pool, residues
from flhe.schemes.batchcrypt.crt import Join
from flhe.schemes.batchcrypt.residue_pool import draw
from flhe.schemes.batchcrypt.residues import MAX_TABLE_BYTES, GmpTable, LaneTable, Residues, window
from tests.patience import PATIENCE_S

gmpy2 = pytest.importorskip("gmpy2")

P, Q = 2**127 - 1, 2**107 - 1
N = P * Q
H = N - 3**2
COUNTS = {"no table": 1, "small": 30, "large": 5000}


@pytest.fixture(params=["gmp", "lanes"])
def by_lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Short primes are drawn by GMP, unless they are let into lanes."""
    if request.param == "lanes":
        if not lanes.available():
            pytest.skip("no AVX-512 IFMA")
        monkeypatch.setattr(lanes, "SHORTEST", 2)
    assert residues.in_lanes(P, Q) == (request.param == "lanes")
    return bool(request.param == "lanes")


class Recorded:
    """Secure random bytes that are remembered."""

    def __init__(self) -> None:
        self.data = b""

    def __call__(self, count: int) -> bytes:
        fresh = secrets.token_bytes(count)
        self.data += fresh
        return fresh


def exponents(data: bytes, n: int) -> list[int]:
    """What the bytes say, by the definition."""
    bits = -(-n.bit_length() // 2)
    size = -(-bits // 8)
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return [int.from_bytes(part, "little") % 2**bits for part in parts]


# --- the definition ---


@pytest.mark.usefixtures("by_lanes")
@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize(
    ("p", "q", "h"),
    [
        (293, 433, 126869 - 4),
        (11, 13, 143 - 4),
        (3, 2**89 - 1, 5),
        (2**89 - 1, 3, 5),
        (P, Q, H),
        (Q, P, H),
        (10_007, 2**61 - 1, 10**12),
    ],
)
def test_residues_are_the_definition(p: int, q: int, h: int, count: int) -> None:
    n = p * q
    random = Recorded()
    source = Residues(p, q, h, count, random)
    drawn = source.draw(40) + source.draw(1) + source.draw(0) + source.draw(17)
    expected = [pow(h, n * a, n * n) for a in exponents(random.data, n)]
    assert drawn == expected
    assert len(drawn) == 58


@pytest.mark.usefixtures("by_lanes")
@pytest.mark.parametrize("width", [1, 4, 5, 9])
def test_any_window(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residues, "window", lambda p, bits, count, by_lanes: width)
    for count in (1, 7, 8, 9, 33):
        random = Recorded()
        h = secrets.randbelow(N - 2) + 2
        drawn = Residues(P, Q, h, 1, random, threads=count % 3).draw(count)
        assert drawn == [pow(h, N * a, N * N) for a in exponents(random.data, N)]


@pytest.mark.usefixtures("by_lanes")
@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS)
def test_exponents_at_both_ends(count: int) -> None:
    for byte, a in ((b"\0", 0), (b"\xff", 2**117 - 1)):
        (u,) = Residues(P, Q, H, count, lambda k, byte=byte: byte * k).draw(1)  # type: ignore[misc]
        assert u == pow(H, N * a, N * N)


@pytest.mark.parametrize("in_lanes", [False, True])
def test_windows_fit_the_work_and_the_memory(in_lanes: bool) -> None:
    for bits in (260, 1024, 1536, 2048, 4096):
        p = (1 << bits) - 1
        widths = [window(p, bits, count, in_lanes) for count in (1, 20, 300, 5000, 10**6)]
        assert widths[0] == 0
        assert widths == sorted(widths)
        assert widths[-1] > 3
        entries = -(-bits // widths[-1]) * 2 ** widths[-1]
        assert entries * 2 * bits / 8 < MAX_TABLE_BYTES


@pytest.mark.parametrize(("p", "q"), [(P, 15), (21, Q), (P, 2**20)])
def test_numbers_that_are_no_primes(p: int, q: int) -> None:
    with pytest.raises(FaultError):
        Residues(p, q, 2, 1)


# --- faults ---


def all_fives(count: int) -> bytes:
    """Every digit is 5, at a window of 4 bits, but that of the last window, which has one bit."""
    return b"\x55" * count


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residues, "window", lambda p, bits, count, by_lanes: 4)


@pytest.mark.usefixtures("four", "by_lanes")
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("part", [0, 1])
def test_a_flipped_bit_of_an_entry_is_noticed(half: int, part: int) -> None:
    """alpha or s, x or y, of an entry that is read."""
    for trial in range(60):
        source = Residues(P, Q, H, 1, all_fives)
        table = source._halves[half]._table
        if isinstance(table, GmpTable):
            (table._alphas, table._sums)[part][trial % 29][5] ^= 1 << (trial * 7 % 100)
        else:
            assert isinstance(table, LaneTable)
            limb = trial % 2 + part * table._lanes.limbs
            table._table[trial % 29, 5, limb] ^= 1 << (trial * 7 % 50)
        with pytest.raises(FaultError):
            source.draw(1 + trial % 4)


@pytest.mark.parametrize("bit", range(0, 200, 9))
def test_a_faulty_base_is_noticed(bit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """h^n itself, of which an independent power would show nothing."""

    class Faulty:
        def __init__(self) -> None:
            self.first = True

        def __getattr__(self, name: str) -> Any:
            return getattr(gmpy2, name)

        def powmod(self, *args: Any) -> Any:
            first, self.first = self.first, False
            return gmpy2.powmod(*args) ^ (first << bit)

    faulty = Faulty()
    monkeypatch.setattr(residues, "gmpy", lambda: faulty)
    with pytest.raises(FaultError):
        Residues(P, Q, H, 1)
    assert not faulty.first


@pytest.mark.usefixtures("by_lanes")
@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS)
def test_a_fault_while_joining_is_noticed(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Residues(P, Q, H, count)
    call = Join.__call__
    calls = 0

    def faulty(self: Join, x: Any, y: Any) -> Any:
        nonlocal calls
        calls += 1
        return call(self, x, y) ^ (calls == 3) << calls

    monkeypatch.setattr(Join, "__call__", faulty)
    with pytest.raises(FaultError) as raised:
        source.draw(7)
    assert not any(c.isdigit() for c in str(raised.value))


# --- child processes ---


class Started(list[subprocess.Popen[bytes]]):
    """Processes that the pool starts; of another program, if one is said."""

    program: list[str] | None = None


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """All of them are gone in the end."""
    processes, popen = Started(), subprocess.Popen

    def recorded(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
        processes.append(popen(processes.program or command, **how))
        return processes[-1]

    monkeypatch.setattr(residue_pool.subprocess, "Popen", recorded)
    yield processes
    assert all(process.returncode is not None for process in processes)


def test_children_draw_residues(started: Started) -> None:
    drawn = draw(P, Q, H, 601, 2)
    assert len(set(drawn)) == len(drawn) == 601
    order = (P - 1) * (Q - 1)
    assert all(0 < u < N * N and pow(u, order, N * N) == 1 for u in drawn)
    assert len(started) == 2
    assert started[0].args == started[1].args
    assert str(P) not in str(started[0].args)


def test_few_residues_or_injected_randomness_need_no_child(started: Started) -> None:
    random = Recorded()
    assert len(draw(P, Q, H, 300, 2, random)) == 300
    assert len(random.data) == 300 * 15
    assert len(draw(P, Q, H, residue_pool.SMALL - 1, 2)) == residue_pool.SMALL - 1
    assert draw(P, Q, H, 0, 2) == []
    assert len(draw(P, Q, H, residue_pool.SMALL, 0)) == residue_pool.SMALL
    assert started == []


def test_children_that_take_too_long_are_stopped(started: Started) -> None:
    with pytest.raises(FlheError, match="not done after 0 s"):
        residue_pool.draw_in_children(P, Q, H, 10**7, 2, timeout=0.2)
    assert len(started) == 2
    work = ((2048, 100), (2048, 10_000), (3072, 10_000))
    allowed = [1.0, *(residue_pool.seconds(*each) for each in work), 600.0]
    assert allowed == sorted(set(allowed))


@pytest.mark.parametrize(
    "command",
    [
        ["/nonexistent/python"],
        [sys.executable, "-c", "raise SystemExit(3)"],
        [sys.executable, "-c", "print('I am another program', flush=True); input()"],
        [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"],
    ],
)
def test_without_children_this_process_draws(
    command: list[str], started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    started.program = command
    with caplog.at_level(logging.WARNING, "flhe"):
        assert len(draw(P, Q, H, 300, 2)) == 300
    assert "drawing in this one" in caplog.text


def test_a_childs_fault_is_ours(started: Started) -> None:
    code = f"import os; input(); os._exit({residue_pool.FAULT})"
    started.program = [sys.executable, "-c", code]
    with pytest.raises(FaultError):
        draw(P, Q, H, 300, 1)


# --- the child by itself ---

CHILD = [sys.executable, "-m", "flhe.schemes.batchcrypt.residue_pool"]


def test_a_child_is_gone_when_its_parent_is() -> None:
    """That one has ended: another process has its place, or none."""
    with subprocess.Popen(
        [*CHILD, "1000000000"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        assert process.wait(PATIENCE_S) == residue_pool.FAILED


@pytest.mark.parametrize("order", ["", "11 13", "x"])
def test_a_child_that_fails_says_nothing(order: str) -> None:
    done = subprocess.run(
        CHILD, input=order.encode(), capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (residue_pool.FAILED, b"", b"")
