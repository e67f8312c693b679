"""Groups and federations that attacks begin with."""

from tests.mods.conftest import four, group, site
from tests.strategies.conftest import quick

__all__ = ["four", "group", "quick", "site"]
