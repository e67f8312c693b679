"""Work on several threads: one vector cut into parts, or tasks, in one pool of the process."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")


def spread(work: Callable[[int, int], None], length: int, step: int, threads: int) -> None:
    """Run `work(start, stop)` over [0, length), cut at multiples of `step`, one run a thread."""
    share = max(-(-length // (step * max(threads, 1))) * step, 1)
    parts = ((start, min(start + share, length)) for start in range(0, length, share))
    run_all([functools.partial(work, *part) for part in parts], threads)


def run_all(tasks: Sequence[Callable[[], T]], threads: int) -> list[T]:
    """Run tasks on `threads` threads, the caller's included; return their results, in order."""
    if threads <= 1 or len(tasks) <= 1:
        return [task() for task in tasks]
    futures = [_pool(threads - 1).submit(task) for task in tasks]
    own: dict[int, T] = {}
    try:
        # A thread that has just been woken often has to wait for a processor. So the caller works
        # too, from the end on. It waits only for tasks that have begun, so calls may be nested.
        for at in reversed(range(len(tasks))):
            if futures[at].cancel():
                own[at] = tasks[at]()
    finally:
        # After an error too: nobody may still write into the caller's arrays.
        wait([future for future in futures if not future.cancel()])
    return [own[at] if at in own else future.result() for at, future in enumerate(futures)]


@functools.cache
def _pool(workers: int) -> ThreadPoolExecutor:
    """Return this process's pool: starting threads anew takes longer than encrypting a small update."""
    return ThreadPoolExecutor(workers, thread_name_prefix="arithmetic")


if hasattr(os, "register_at_fork"):  # A child has none of its parent's threads.
    os.register_at_fork(after_in_child=_pool.cache_clear)
