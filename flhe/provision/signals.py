"""Signals as exceptions, which unwind through every clean-up."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def raising(error: Callable[[int], BaseException], *numbers: int) -> Iterator[None]:
    """Have these signals raise `error` of their number meanwhile, in the main thread."""

    def end(number: int, _: object) -> None:
        raise error(number)

    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
