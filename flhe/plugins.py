"""Plugins: classes by name, flhe's own and those that other distributions bring by an entry point.

A class is loaded when it is asked for: a node imports the scheme that it runs, and no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module, metadata
from typing import Generic, TypeVar, cast

from flhe.errors import ConfigError

T = TypeVar("T")


class Plugins(Generic[T]):
    """Classes of one kind, by name.

    Parameters
    ----------
    what : str
        What they are, in errors.
    group : str
        The entry point by which other distributions name theirs.
    own : mapping of str to str
        "module:Class" of flhe's, by name; no other distribution replaces one of them.
    """

    def __init__(self, what: str, group: str, own: Mapping[str, str]) -> None:
        self.what, self.group, self.own = what, group, own
        self._loaded: dict[str, type[T]] = {}

    def _places(self) -> dict[str, str]:
        others = {point.name: point.value for point in metadata.entry_points(group=self.group)}
        return {**self.own, **{name: at for name, at in others.items() if name not in self.own}}

    def names(self) -> tuple[str, ...]:
        """Every name that is installed, flhe's own first."""
        return tuple(self._places())

    def named(self, name: str) -> type[T]:
        """The class of that name.

        Raises
        ------
        ConfigError
            None of that name is installed, or what is there has another one.
        """
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> type[T]:
        places = {name: self.own[name]} if name in self.own else self._places()
        if name not in places:
            raise ConfigError(
                f"{self.what} {name!r}: there are {', '.join(places)}; another one must be installed "
                "beside flhe, on the server and on every node"
            )
        module, _, attribute = places[name].partition(":")
        found = getattr(import_module(module), attribute, None)
        if getattr(found, "name", None) != name:
            raise ConfigError(f"{self.what} {name!r}: {places[name]} is none of that name")
        return cast("type[T]", found)

    def all(self) -> tuple[type[T], ...]:
        """The classes of all names."""
        return tuple(map(self.named, self.names()))
