"""What the nodes of a simulation hold in memory, seen from outside: processes beside the server's."""

from __future__ import annotations

import sys

from flhe.strategies.overhead import resident

ACTOR = "ray::ClientAppActor"
"""How Ray calls a process that Flower's simulation runs nodes in."""


def nodes_memory() -> int | None:
    """Most bytes that one of those processes below this one ever held; None where there are none.

    One such process runs one node after the other.
    """
    if "ray" not in sys.modules:
        return None
    import psutil

    most = 0
    try:
        below = psutil.Process().children(recursive=True)
    except (psutil.Error, OSError):  # the system does not tell
        return None
    for process in below:
        try:
            if " ".join(process.cmdline()).startswith(ACTOR):
                most = max(most, resident("VmHWM", process.pid))
        except (psutil.Error, OSError):  # it has ended meanwhile
            continue
    return most or None
