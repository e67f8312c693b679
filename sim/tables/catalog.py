"""All sections, in the order of the page. A section's module is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from flhe.errors import ConfigError
from flhe_lab.tables.section import Section

MODULES = (
    "headlines",
    "flashe_rounds",
    "flashe_masks",
    "batchcrypt_costs",
    "batchcrypt_rounds",
    "esafl_packing",
    "fedml_costs",
    "fedml_rounds",
    "sash_times",
    "learned",
    "scale",
)
"""Modules of this package that have SECTIONS."""


def sections(names: Sequence[str] = ()) -> tuple[Section, ...]:
    """Those of these names, or of these papers ("flashe"); all without names.

    Raises
    ------
    ConfigError
        A name that no section has.
    """
    everything = tuple(
        section
        for module in MODULES
        for section in import_module(f"flhe_lab.tables.{module}").SECTIONS
    )
    if not names:
        return everything
    asked = [name.lower() for name in names]
    known = {n for s in everything for n in (s.name, s.paper.lower())}
    for name in set(asked) - known:
        raise ConfigError(f"{name!r}: choose from {', '.join(s.name for s in everything)}")
    return tuple(s for s in everything if s.name in asked or s.paper.lower() in asked)
