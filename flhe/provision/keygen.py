"""`flhe keygen --scheme`: deal keys offline, for a federation with a trusted dealer.

The dealer is the administration server of ESAFL's paper: it deals once, and takes part in nothing
else. Each site gets one file, by hand; `flhe.keys.agreement.dealt` describes its content.

Source: ESAFL, Sec. 3.1 and 5.2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flhe.answer import Answer, table
from flhe.errors import ConfigError, StoreError, config_errors
from flhe.keys.agreement.dealt import Dealt, deal
from flhe.keys.roster.pinned import load_pinned
from flhe.keys.roster.roster import Roster
from flhe.schemes.base import Scheme
from flhe.schemes.registry import SCHEMES
from flhe.wire import files

SUFFIX = ".dealt-key"

MANY = 10
"""Maximum number of names in an error; it counts the rest."""


def keygen(
    scheme: str,
    roster: Path | None,
    roster_hash: str,
    out: Path | None,
    ring: str,
    without: Sequence[str] = (),
) -> Answer:
    """Deal keys to a roster's sites, one file each, 0600, in a directory of the dealer only.

    `out` is created if missing, and nothing in it is overwritten; sites named in `without` get no
    key. The answer has one row for each site, and the next steps; nothing of it is secret.

    Raises ConfigError, ProtocolError, StoreError: invalid arguments, or a file that cannot be
    written. No file of the dealing remains.
    """
    kind = _dealing(scheme, ring)
    if roster is None or not roster_hash or out is None:
        given = {"--roster FILE": roster, "--roster-hash HEX": roster_hash, "--out DIR": out}
        missing = " ".join(option for option, value in given.items() if not value)
        raise ConfigError(
            f"{missing} is missing: keys are dealt to the roster that the sites pin, into a directory"
        )
    sites = load_pinned(roster, roster_hash)
    if not sites.allows(kind.name):
        raise ConfigError(
            f"--roster {roster}: it allows {', '.join(sites.schemes)} and not {kind.name}, which "
            "its sites would refuse: agree on a roster that allows it"
        )
    dealt = deal(sites, kind, _publics(sites, without))
    paths = {sites.name(public): public for public in dealt}
    written = tuple((name, out / f"{name}{SUFFIX}") for name in sorted(paths))
    _make_directory(out)
    done: list[Path] = []
    try:
        for name, path in written:
            if not files.create(path, dealt[paths[name]].to_bytes(), "the directory of --out"):
                raise ConfigError(
                    f"--out: {path} exists already, and no key is ever overwritten: name another "
                    "directory, or delete the earlier keys once no site uses them"
                )
            done.append(path)
    except BaseException:
        for path in done:  # a partial dealing is useless
            files.erase(path)
        raise
    serial = next(iter(dealt.values())).serial.hex()
    return Answer(
        {"serial": serial, "roster": sites.hash, "scheme": kind.name, "files": dict(written)},
        f"{len(written)} sites; {kind.summary()}",
        table(("site", "file"), [(name, str(path)) for name, path in written]),
        f"""Serial: {serial}, in all of these files and in those of no other dealing.
Roster: {sites.hash.hex()}

1. Give each site its own file, by hand, never through the server.
2. Each site compares the serial with the others: flhe keygen --show FILE
3. Each site keeps the file with mode 600, and names it in its node config as flhe-dealt-key,
   beside flhe-fresh-keys=false: the keys last.
4. Delete {out} and every copy: all the files together decrypt every update.
5. Write in the ServerApp: HEStrategy(scheme={kind!r}).""",
    )


def show(path: Path) -> Answer:
    """Return the public facts of a site's file: everything but the keys.

    Raises ConfigError: it cannot be read, others can read it, or it is no such file.
    """
    with config_errors(f"--show {path}"):
        dealt = Dealt.read(path)
    public = {
        "serial": dealt.serial.hex(),
        "scheme": f"{dealt.scheme.name}; {dealt.scheme.summary()}",
        "roster": dealt.roster_hash.hex(),
        "site": dealt.member.hex(),
        "sites": len(dealt.members),
    }
    return Answer(public, "\n".join(f"{name:8}{value}" for name, value in public.items()))


def _dealing(name: str, ring: str) -> Scheme:
    """Return the scheme of that name with dealt keys; ConfigError with the possible names."""
    able = [kind.name for kind in SCHEMES.all() if kind.dealing() is not None]
    made = SCHEMES.named(name).dealing(**{"ring": ring} if ring else {}) if name in able else None
    if made is None:
        asked = f"--scheme {name}: keys can be dealt" if name else "keys are dealt"
        raise ConfigError(
            f"{asked} for {' and '.join(able)} only: say --scheme {able[0]}. `flhe site init` makes "
            "the identity of a site"
        )
    return made


def _publics(roster: Roster, names: Sequence[str]) -> list[bytes]:
    known = {member.name: member.public for member in roster.members}
    for name in names:
        if name not in known:
            there = ", ".join(sorted(known)) if len(known) <= MANY else f"{len(known)} others"
            raise ConfigError(f"--without {name}: no site of the roster; there are {there}")
    return [known[name] for name in names]


def _make_directory(out: Path) -> None:
    """Create or take a directory of the dealer only."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        files.make_private(out)
    except (StoreError, OSError):
        raise ConfigError(
            f"--out {out}: name a directory of yours that no other user may access (chmod 700), "
            "or one that does not exist yet"
        ) from None
