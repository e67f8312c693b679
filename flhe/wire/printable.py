"""Printable: somebody else's text, as a log or a terminal may show it."""

from __future__ import annotations


def printable(text: str, most: int = 200) -> str:
    """At most so many characters of `text`, in one line, with none that a terminal would act on."""
    return "".join(c if c.isprintable() else "?" for c in text[:most])
