"""Watchdog of one run: waits for its parent to go, then ends what the parent left behind.

Its standard input is a pipe that only the parent holds: it closes when the parent ends, however
that happens.
"""

from __future__ import annotations

import shutil
import sys

from flhe_app.processes import stop_tagged


def main(tag: str, scratch: str) -> None:
    """Wait for end of input; then stop every process with `tag` and remove `scratch`."""
    sys.stdin.read()
    stop_tagged(tag)
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
