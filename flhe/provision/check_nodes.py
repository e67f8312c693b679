"""Check of who works on a state directory: two nodes on one would be one site twice."""

from __future__ import annotations

import os
from pathlib import Path

from flhe.errors import FlheError
from flhe.provision.checks import Check

_PROCESSES = Path("/proc")
_OPTION = "--node-config"
_SHORTEST = "--node"
"""flower-supernode takes what its option begins with, too."""


def check_nodes(home: Path) -> Check:
    """How many SuperNodes of this machine have this directory, by whatever path they name it."""
    if not _PROCESSES.is_dir():
        return Check("processes", "ok", "cannot be counted on this system")
    found = [pid for pid in _PROCESSES.glob("[0-9]*") if _works_on(pid, home)]
    if len(found) > 1:
        pids = ", ".join(sorted(pid.name for pid in found))
        says = f"{len(found)} SuperNodes run on this directory (processes {pids})"
        mend = "end all but one, and give each node a directory and an identity of its own"
        return Check("processes", "fail", says, mend)
    return Check("processes", "ok", "one SuperNode runs on it" if found else "no node runs on it")


def _works_on(pid: Path, home: Path) -> bool:
    try:
        words = (pid / "cmdline").read_bytes().decode(errors="replace").split("\0")
        if not any(Path(word).name == "flower-supernode" for word in words[:3]):
            return False
        there = (pid / "cwd").readlink()
    except OSError:  # it has ended, or is somebody else's: the directory is then not open to it
        return False
    return any(_names(written, there, home) for written in _configs(words))


def _configs(words: list[str]) -> list[str]:
    """What a command line has as its node config: the word behind the option, or behind its `=`."""
    found = []
    for word, after in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if option.startswith(_SHORTEST) and _OPTION.startswith(option):
            found.append(value if equals else after)
    return found


def _names(written: str, there: Path, home: Path) -> bool:
    """Whether a node config, read in the directory `there`, has this state directory."""
    from flhe.provision.flower_config import as_flower_reads

    if written.endswith(".toml"):
        written = str(there / written)
    try:
        named = as_flower_reads(written).get("flhe-home")
    except FlheError:
        return False
    return isinstance(named, str) and os.path.realpath(there / named) == os.path.realpath(home)
