"""Plugins: classes by name, flhe's own and those that other distributions add by an entry point.

A class is loaded on request: a node imports only the scheme that it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module, metadata
from typing import Any, Generic, TypeVar, cast

from flhe.errors import ConfigError, logger

T = TypeVar("T")

MOST = 64
"""Maximum characters of an unknown name that an error repeats."""


class Plugins(Generic[T]):
    """Classes of one kind, called `what` in errors, by name.

    Other distributions register theirs under the entry point `group`. `own` are flhe's,
    "module:Class" by name, which cannot be replaced. `check` returns why a class is invalid, or "".
    """

    def __init__(
        self, what: str, group: str, own: Mapping[str, str], check: Callable[[Any], str]
    ) -> None:
        self.what, self.group, self.own, self._check = what, group, own, check
        self._loaded: dict[str, type[T]] = {}
        self._found: dict[str, str] | None = None

    def _places(self) -> dict[str, str]:
        # Once: it reads a file of every installed distribution, and a node asks at each message.
        if self._found is not None:
            return self._found
        places = dict(self.own)
        for point in metadata.entry_points(group=self.group):
            if places.setdefault(point.name, point.value) != point.value:
                logger.warning(
                    "%s %r of %s is ignored: %s has that name",
                    self.what,
                    point.name,
                    point.value,
                    places[point.name],
                )
        self._found = places  # whole, or another thread would miss some
        return places

    def names(self) -> tuple[str, ...]:
        """Return every installed name, flhe's own first."""
        return tuple(self._places())

    def named(self, name: str) -> type[T]:
        """Return the class of that name.

        Raises ConfigError: the name is not installed, or the class does not load or is of another
        kind.
        """
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> type[T]:
        places = {name: self.own[name]} if name in self.own else self._places()
        if name not in places:
            raise ConfigError(
                f"{self.what} {name[:MOST]!r}: there are {', '.join(places)}; another one must be "
                f"installed beside flhe, on the server and on every node (entry point {self.group!r})"
            )
        module, _, attribute = places[name].partition(":")
        try:
            found = getattr(import_module(module), attribute)
        except Exception as error:  # a plugin may raise anything
            missing = getattr(error, "name", None) if isinstance(error, ImportError) else None
            which = f" ({missing})" if missing else ""
            raise ConfigError(
                f"{self.what} {name!r}: {places[name]} does not load: {type(error).__name__}{which}"
            ) from error
        own = getattr(found, "name", "")
        try:
            why = self._check(found) if own == name else f"its own name is {own!r}"
        except Exception as error:  # likewise
            why = f"its check ended in {type(error).__name__}"
        if why:
            raise ConfigError(f"{self.what} {name!r}: {places[name]} is no {self.what}: {why}")
        return cast("type[T]", found)

    def all(self) -> tuple[type[T], ...]:
        """Return the classes of all names; warn about those that do not load and skip them."""
        found = []
        for name in self.names():
            try:
                found.append(self.named(name))
            except ConfigError as error:
                logger.warning("%s", error)
        return tuple(found)
