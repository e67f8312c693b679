"""Memory of a simulation's nodes, measured from outside: processes beside the server's."""

from __future__ import annotations

import sys
from contextlib import suppress

from flhe.strategies.overhead import resident

ACTOR = "ray::ClientAppActor"
"""Ray's name of a process in which Flower's simulation runs nodes."""


def nodes_memory() -> int | None:
    """Return the maximum bytes ever of one of those processes below this one, or None.

    One such process runs one node after the other.
    """
    if "ray" not in sys.modules:
        return None
    import psutil

    most, below = 0, []
    with suppress(psutil.Error, OSError):  # the system does not report it
        below = psutil.Process().children(recursive=True)
    for process in below:
        with suppress(psutil.Error, OSError):  # it has ended meanwhile
            if " ".join(process.cmdline()).startswith(ACTOR):
                most = max(most, resident("VmHWM", process.pid))
    return most or None
