"""Memory that a process holds, as the system tells."""

from __future__ import annotations

import sys
from pathlib import Path


def resident(key: str = "VmRSS", pid: int | str = "self") -> int:
    """Bytes of memory that a process holds; with `VmHWM` the most that it ever held.

    Where the system does not tell the most ever, it is what the process holds now.

    Raises
    ------
    ProcessLookupError
        There is no such process.
    """
    if sys.platform != "linux":
        import psutil

        try:
            return int(psutil.Process(None if pid == "self" else int(pid)).memory_info().rss)
        except psutil.Error:
            raise ProcessLookupError(pid) from None
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
    for line in lines.splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)  # it has ended, nobody has waited for it yet
