"""Ctrl-C, SIGTERM and SIGHUP as an exception that unwinds through every clean-up."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """The user ended the run: Ctrl-C, SIGTERM or a closed terminal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.hint = ""
        """Command that resumes the run; "" if nothing was kept."""


@contextmanager
def signals() -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and SIGHUP into Stopped, which unwinds through every clean-up."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    previous = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ignore_signals() -> None:
    """Ignore signals during the clean-up."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
