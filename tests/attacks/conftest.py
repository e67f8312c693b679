"""Groups that attacks begin with."""

from tests.mods.conftest import four, group, site

__all__ = ["four", "group", "site"]
