"""Imports others' code once, with the warnings that its authors still owe."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="'click.", category=DeprecationWarning)
    import typer  # noqa: F401  (reads names that click has deprecated)
