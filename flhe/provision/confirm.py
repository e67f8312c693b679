"""Consent: a question on the terminal, or the option that answers it in a script."""

from __future__ import annotations

import sys

import typer

from flhe.errors import ConfigError


def confirm(question: str, option: str) -> None:
    """Return if the administrator says yes; ConfigError otherwise, or without a terminal."""
    if not sys.stdin.isatty():
        raise ConfigError(f"there is no terminal to ask on: add {option}; nothing was written")
    if not typer.confirm(question, err=True):
        raise ConfigError("you answered no: nothing was written")
