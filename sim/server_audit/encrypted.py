"""Federations of flhe: HEMod on the sites under its default policy, and a server that lies."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flhe.errors import FlheError
from flhe.keys.roster.roster import Member, Roster
from flhe.mods import HEMod, records
from flhe.node.store import Store
from flhe.schemes.base import Scheme
from flhe_lab.server_audit.grid import Heard, LyingGrid
from flhe_lab.server_audit.liar import Liar
from flhe_lab.server_audit.script import Script, View
from flhe_lab.server_audit.task import VICTIM, Floats, Setting, client_app

COLLUSION = 1
"""Sites that may collude with the server, as the roster says."""
MEMORY = Path("/dev/shm")  # noqa: S108
"""Where Linux keeps files in memory: on a disk, nodes wait as long for it as they work."""


@dataclass(frozen=True, slots=True)
class Encrypted:
    """A scheme under default terms and policy; `reads` lets the server read sums on every site."""

    name: str
    scheme: Scheme
    reads: bool = False
    signs: bool = True

    def run(self, setting: Setting, script: Script) -> View:
        """See `System`."""
        view = View()
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as scratch:
            config = _pinned(Path(scratch), setting.sites, self.reads)
            grid = LyingGrid(
                client_app(setting, HEMod()),
                setting.sites,
                node_config=lambda site: {"flhe-home": str(Path(scratch) / f"{site}"), **config},
            )
            with grid:
                liar = Liar(self.scheme, setting, script, grid)
                if script.before is not None:
                    script.before(liar.probe())
                arrays = records.from_numpy(setting.arrays(setting.first()))
                told = {"lr": setting.rate}
                try:
                    liar.start(grid, arrays, len(script.rounds), train_config=told)
                except FlheError:
                    liar.aside = None  # a site has ended the run, before the question or after it
                if liar.aside is not None:
                    raise FlheError("nobody was asked to evaluate: nothing was tried")
                view.rounds[:] = [
                    dataclasses.replace(seen, masked=_masked(grid.heard, number, setting))
                    for number, seen in enumerate(liar.seen, 1)
                ]
                grid.note(view)
        return view


def _pinned(scratch: Path, sites: int, reads: bool) -> dict[str, Any]:
    """Make the sites' identities and a roster that all pin; returns the node config."""
    identities = [Store(scratch / f"{site}").identity() for site in range(sites)]
    members = tuple(Member(f"site-{i}", one.public) for i, one in enumerate(identities))
    roster = Roster(members, COLLUSION, 2, ("*",))
    (scratch / "roster").write_bytes(roster.to_bytes())
    pin = {"flhe-roster": str(scratch / "roster"), "flhe-roster-hash": roster.hash.hex()}
    return {**pin, **({"flhe-server-reads": True} if reads else {})}


def _masked(heard: Iterable[Heard], number: int, setting: Setting) -> Floats | None:
    """The victim's ciphertext of a round, read as numbers, shape (values,)."""
    for each in heard:
        there = each.content is not None and records.UPDATE in each.content
        if not there or (each.round, each.site) != (number, VICTIM):
            continue
        assert each.content is not None
        answer = records.find_reply(each.content)
        assert answer is not None
        header = records.field(answer, "header", bytes)
        part = records.to_sealed(header, each.content.array_records[records.UPDATE], floats=0)
        if part.length < setting.values:
            continue  # an evaluation
        width = 8 * part.data.size // part.length
        bits = np.unpackbits(part.data, bitorder="little")[: part.length * width]
        lanes = bits.reshape(part.length, width) @ (2.0 ** np.arange(width))
        return np.asarray(lanes[: setting.values] - 2.0 ** (width - 1), np.float64)
    return None
