"""Printable: untrusted text, made safe for a log or a terminal."""

from __future__ import annotations


def printable(text: str, most: int = 200) -> str:
    """Return up to `most` characters of `text`, in one line, without terminal control characters."""
    return "".join(c if c.isprintable() else "?" for c in text[:most])
