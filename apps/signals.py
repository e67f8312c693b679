"""Ctrl-C, SIGTERM and SIGHUP as an exception that unwinds through every clean-up."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager

from flhe.provision.signals import raising


class Stopped(BaseException):
    """The user ended the run: Ctrl-C, SIGTERM or a closed terminal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.hint = ""
        """Command that resumes the run; "" if nothing was kept."""


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def signals() -> AbstractContextManager[None]:
    """Turn Ctrl-C, SIGTERM and SIGHUP into Stopped, which unwinds through every clean-up."""
    return raising(Stopped, *_SIGNALS)


def ignore_signals() -> None:
    """Ignore signals during the clean-up."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
