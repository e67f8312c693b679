"""Work on several threads: order, errors, nesting, forks."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.math.threads import run_all, spread

PATIENCE_S = 60

FORKS = """
import os
from flhe.math.threads import run_all
tasks = [lambda: 1, lambda: 2, lambda: 3]
assert run_all(tasks, 2) == [1, 2, 3]
if (child := os.fork()) == 0:
    os._exit(0 if run_all(tasks, 2) == [1, 2, 3] else 1)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_results_come_in_order(count: int, threads: int) -> None:
    assert run_all([partial(pow, i, 2) for i in range(count)], threads) == [
        i * i for i in range(count)
    ]


@given(st.integers(0, 10**6), st.integers(1, 10**4), st.integers(1, 16))
def test_every_place_is_worked_on_once(length: int, step: int, threads: int) -> None:
    parts: list[tuple[int, int]] = []
    spread(lambda *part: parts.append(part), length, step, threads)
    parts.sort()
    assert [start for start, _ in parts] == [0, *(stop for _, stop in parts)][: len(parts)]
    assert (parts[-1][1] if parts else 0) == length
    assert len(parts) <= threads
    assert all(start % step == 0 for start, _ in parts)


def test_two_threads_are_the_caller_and_another() -> None:
    meet = threading.Barrier(2)

    def task() -> str:
        meet.wait(PATIENCE_S)
        return threading.current_thread().name

    names = run_all([task, task], 2)
    assert threading.current_thread().name in names
    assert len(set(names)) == 2


def test_tasks_may_have_tasks() -> None:
    def outer(i: int) -> list[int]:
        return run_all([partial(pow, i, k) for k in range(4)], 2)

    assert run_all([partial(outer, i) for i in range(6)], 2) == [
        [i**k for k in range(4)] for i in range(6)
    ]


@pytest.mark.parametrize("whose", ["the caller's", "another's"])
def test_an_error_waits_until_nobody_works(whose: str) -> None:
    began, ended, never = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:  # the pool's: it takes tasks from the front, the caller from the back
        began.set()
        never.wait(0.2)
        ended.set()
        if whose == "another's":
            raise ValueError(whose)

    def last() -> None:
        assert began.wait(PATIENCE_S)
        if whose == "the caller's":
            raise ValueError(whose)

    with pytest.raises(ValueError, match=whose):
        run_all([first, last], 2)
    assert ended.is_set()


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_fork_has_threads_of_its_own() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS], check=True, timeout=PATIENCE_S)
