"""Groups that tests of nodes begin with."""

import threading
from collections.abc import Callable

from tests.mods.conftest import four, group, site

__all__ = ["four", "group", "site"]


def together(acts: list[Callable[[], object]]) -> None:
    """Do all of them at one time."""
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
