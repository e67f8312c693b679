"""Groups that tests of nodes begin with."""

from tests.mods.conftest import four, group

__all__ = ["four", "group"]
