"""What `flhe roster` does: files in, files out, and what a person reads of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from flhe.errors import ConfigError, FlheError
from flhe.keys.roster import fingerprint
from flhe.keys.roster.limits import Limits
from flhe.keys.roster.roster import ANY, Member, Roster
from flhe.keys.roster.signed_roster import MAX_FILE, SignedRoster, check_pinned, parse_hash
from flhe.provision import public_files, sites
from flhe.schemes import PLAIN
from flhe.schemes.registry import SCHEMES

MANY = 100
"""Sites from which on their table has no lines between them."""


def new(
    out: Path,
    requests: Sequence[Path],
    collusion: int | None,
    min_survivors: int | None,
    schemes: Sequence[str],
    limits: Sequence[str],
) -> Roster:
    """Make a roster of the sites whose requests these are, signed by nobody yet.

    Raises ConfigError: a request that replaces a key, a scheme or limit that is unknown, bounds
    that cannot work, or a file that is there; ProtocolError, AuthenticationError: a file that is no
    request, or was changed.
    """
    public_files.check_new(out)
    allowed = (*SCHEMES.names(), PLAIN, ANY)
    if unknown := [scheme for scheme in schemes if scheme not in allowed]:
        raise ConfigError(f"--scheme {unknown[0]}: no scheme; there are {', '.join(allowed)}")
    members = tuple(_newcomer(path) for path in requests)
    bound = Roster.default_collusion(len(members)) if collusion is None else collusion
    least = 2 if min_survivors is None else min_survivors
    roster = Roster(members, bound, least, tuple(schemes), limits=Limits.parse(limits))
    return _write(out, roster)


def sign(path: Path, home: Path, roster_hash: str, previous: Roster | None = None) -> SignedRoster:
    """Add the signature of the site whose state directory this is.

    Raises ConfigError: the roster has another hash than was given, or there is no identity; or a
    key that `previous` lists as revoked is not listed so any more; ProtocolError: the site is not
    listed.
    """
    read = load(path)
    _check_hash(read.roster, roster_hash)
    if previous is not None:
        _check_revoked(previous, read.roster)
    signed = read.signed(sites.existing(home))
    public_files.replace(path, signed.to_bytes())
    return signed


def in_force(path: Path) -> Roster:
    """The roster of before, which all of its members have signed; ConfigError for another."""
    signed = load(path)
    try:
        signed.check_complete()
    except ConfigError as error:
        raise ConfigError(
            f"--previous {path}: name the roster that is in force so far; {error}"
        ) from None
    return signed.roster


def difference(old: Roster, new: Roster) -> str:
    """What is another in a roster than in the one before, a line each."""
    was, now = ({m.name: m.public for m in roster.members} for roster in (old, new))
    lines = []
    for name in sorted(was.keys() | now.keys()):
        if name not in was:
            lines.append(f"+ {name} joins, with the key {now[name].hex()[:16]}")
        elif name not in now:
            revoked = was[name] in new.revoked
            fate = " and is revoked" if revoked else ", AND ITS KEY IS NOT REVOKED"
            lines.append(f"- {name} leaves{fate}")
        elif was[name] != now[name]:
            key = now[name].hex()[:16]
            fate = "is revoked" if was[name] in new.revoked else "IS NOT REVOKED"
            lines.append(f"* {name} has another key, {key}; the old one {fate}")
    for gone in sorted(set(old.revoked) - set(new.revoked)):
        lines.append(f"! the key {gone.hex()[:16]} was revoked, and is not any more")
    pairs = zip(bounds(old).splitlines(), bounds(new).splitlines(), strict=True)
    lines += [f"* {after}" for before, after in pairs if before != after]
    return "\n".join(lines) or "Nothing differs from the roster before."


def merge(path: Path, others: Sequence[Path], out: Path) -> SignedRoster:
    """Unite the signatures of copies of one roster; ConfigError for two rosters."""
    public_files.check_new(out)
    merged = load(path)
    for other in others:
        merged = merged.merged(load(other))
    public_files.write_new(out, merged.to_bytes())
    return merged


def check(path: Path, roster_hash: str) -> SignedRoster:
    """Return the roster if it has that hash and all have signed; else ConfigError."""
    signed = load(path)
    _check_hash(signed.roster, roster_hash)
    signed.check_complete()
    return signed


def add(path: Path, request: Path, out: Path) -> Roster:
    """Make the roster with one more site; signed by nobody."""
    public_files.check_new(out)
    return _write(out, load(path).roster.admitted(_newcomer(request)))


def remove(
    path: Path, name: str, out: Path, collusion: int | None, min_survivors: int | None
) -> Roster:
    """Make the roster without a site, whose key is revoked; signed by nobody."""
    public_files.check_new(out)
    roster = load(path).roster
    public = {member.name: member.public for member in roster.members}.get(name)
    if public is None:
        raise ConfigError(f"{name}: no site of this roster; flhe roster show {path} lists them")
    less = roster.removed(public, collusion=collusion, min_survivors=min_survivors)
    return _write(out, less)


def replace(path: Path, request: Path, out: Path) -> Roster:
    """Make the roster in which a site has the key that it rotated to; signed by nobody.

    Raises ConfigError: the request does not replace the key that the roster lists for a site of
    that name.
    """
    public_files.check_new(out)
    roster, asked = load(path).roster, sites.read_request(request)
    if not asked.replaces:
        raise ConfigError(
            f"--site {request}: the old key has not signed this request. Make it by flhe keys rotate; "
            "where the old key is lost, flhe roster remove the site, and flhe roster add it"
        )
    named = {member.name: member.public for member in roster.members}
    if named.get(asked.member.name) != asked.replaces:
        raise ConfigError(
            f"--site {request}: it replaces a key that the roster does not list for {asked.member.name}"
        )
    return _write(out, roster.replaced(asked.replaces, asked.member.public))


def load(path: Path) -> SignedRoster:
    """Read a roster file, whoever has signed it. ConfigError says what is wrong with it."""
    data = public_files.read(path, MAX_FILE, "the roster")
    try:
        return SignedRoster.from_bytes(data)
    except FlheError as error:
        raise ConfigError(f"{path}: {error}") from None


def table(signed: SignedRoster) -> Table:
    """One row a site, in order of names."""
    out = Table(box=SIMPLE_HEAD, pad_edge=False, show_lines=len(signed.roster.members) < MANY)
    for heading in ("site", "key", "in words, all of it", "signed"):
        out.add_column(heading, overflow="fold")
    missing = set(signed.missing)
    for member in sorted(signed.roster.members, key=lambda m: m.name):
        said = "no" if member in missing else "yes"
        words = "\n".join(fingerprint.lines(member.public))
        out.add_row(member.name, f"{member.public.hex()[:16]} ...", words, said)
    return out


def bounds(roster: Roster) -> str:
    """What a roster says beside its sites, in lines."""
    size = len(roster.members)
    lines = [
        f"Of {size} sites, {roster.collusion} may conspire with the server.",
        f"Keys are agreed among {roster.min_members} or more, and a sum that is opened has "
        f"{roster.min_opening} senders or more.",
        f"Schemes: {', '.join(roster.schemes)}.",
        f"Parameters: {', '.join(roster.limits.lines()) or 'each site decides'}.",
    ]
    keys = ", ".join(key.hex()[:16] for key in roster.revoked) or "none"
    lines.append(f"Revoked keys, which never take part again: {keys}.")
    return "\n".join(lines)


def hash_of(roster: Roster) -> str:
    """The hash as it is pinned, and in the words that sites compare over the phone."""
    words = (f"      {line}" for line in fingerprint.lines(roster.hash))
    return "\n".join((f"hash  {roster.hash.hex()}", *words))


def _check_revoked(old: Roster, new: Roster) -> None:
    """What was revoked stays so, whoever makes the next roster, and of whatever requests."""
    if lost := sorted(set(old.revoked) - set(new.revoked)):
        listed = {member.public: member.name for member in new.members}
        named = ", ".join(
            key.hex()[:16] + (f" (listed as {listed[key]})" if key in listed else "")
            for key in lost
        )
        raise ConfigError(
            f"the roster before has revoked keys that this one does not: {named}; do not sign it, and "
            "have it made of the one before (flhe roster add, remove, replace)"
        )


def _newcomer(path: Path) -> Member:
    asked = sites.read_request(path)
    if asked.replaces:
        raise ConfigError(
            f"--site {path}: it replaces a key that is listed; use flhe roster replace"
        )
    return asked.member


def _check_hash(roster: Roster, written: str) -> None:
    try:
        check_pinned(roster, parse_hash(written))
    except ConfigError as error:
        raise ConfigError(f"--roster-hash: {error}") from None


def _write(out: Path, roster: Roster) -> Roster:
    public_files.write_new(out, SignedRoster(roster).to_bytes())
    return roster
