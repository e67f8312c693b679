"""`flhe roster ...`: collect sites into a roster, sign it, check it, and change it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flhe.answer import Answer, notes
from flhe.command_group import examples
from flhe.errors import ConfigError
from flhe.provision.public_files import check_new, write_new
from flhe.provision.public_files import replace as write

if TYPE_CHECKING:
    from rich.console import RenderableType

    from flhe.keys.roster.roster import Roster
    from flhe.keys.roster.signed_roster import SignedRoster

DEFAULT_COLLUSION = "(N - 1) // 3 of N sites: 0 of 3, 1 of 4, 2 of 7, 3 of 10"

roster = typer.Typer(
    no_args_is_help=True, help="Rosters of sites: make, sign, check and change them."
)


File = Annotated[Path, typer.Argument(metavar="FILE", help="The roster file.")]
Out = Annotated[
    Path, typer.Option(metavar="NEW", callback=check_new, help="File of the new roster.")
]
Site = Annotated[Path, typer.Option(metavar="FILE.site", help="The request that the site sent.")]
Colluders = Annotated[
    int | None,
    typer.Option(
        metavar="C",
        help="Sites that may conspire with the server. Default: as before; in the first roster "
        f"{DEFAULT_COLLUSION}.",
    ),
]
Survivors = Annotated[
    int | None, typer.Option(metavar="N", help="Fewest updates in a sum that is opened.")
]
Hash = Annotated[str, typer.Option(metavar="HEX", help="The hash that the sites agreed on.")]


@roster.command(
    epilog=examples(
        "flhe roster new --out sites --scheme esafl \\\n--site a.site --site b.site --site c.site"
    )
)
def new(
    out: Out,
    site: Annotated[
        list[Path], typer.Option(metavar="FILE.site", help="A site's request; repeatable.")
    ],
    scheme: Annotated[
        list[str], typer.Option(metavar="NAME", help="A scheme that may run; repeatable.")
    ],
    collusion: Colluders = None,
    min_survivors: Survivors = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A limit that holds at every site, such as min-members=3; repeatable.",
        ),
    ] = None,
) -> Answer:
    """Make a roster of the sites that have sent their keys."""
    from flhe.keys.roster.limits import Limits
    from flhe.keys.roster.roster import ANY, Roster
    from flhe.provision import rosters
    from flhe.schemes import PLAIN
    from flhe.schemes.registry import SCHEMES

    allowed = (*SCHEMES.names(), PLAIN, ANY)
    if unknown := [name for name in scheme if name not in allowed]:
        raise ConfigError(f"--scheme {unknown[0]}: no scheme; there are {', '.join(allowed)}")
    members = tuple(map(rosters.newcomer, site))
    bound = Roster.default_collusion(len(members)) if collusion is None else collusion
    least = 2 if min_survivors is None else min_survivors
    made = Roster(members, bound, least, tuple(scheme), limits=Limits.parse(allow or ()))
    answer = _made(out, made)
    if collusion is None:
        answer.shown += (
            f"\nThe bound of {made.collusion} that may conspire is the default, "
            f"{DEFAULT_COLLUSION}. --collusion C sets another, before any site signs.",
        )
    return answer


@roster.command(epilog=examples("flhe roster show sites"))
def show(file: File) -> Answer:
    """Show the sites, the bounds, who has signed, and the hash in words."""
    from flhe.provision import rosters

    return Answer(*_shown(rosters.load(file)))


@roster.command(epilog=examples('flhe roster sign sites --home state --roster-hash "$HASH"'))
def sign(
    file: File,
    home: Annotated[Path, typer.Option(metavar="DIR", help="This site's state directory.")],
    roster_hash: Hash,
    previous: Annotated[
        Path | None,
        typer.Option(
            metavar="OLD",
            help="The roster in force so far: show what differs, and refuse keys that it revokes.",
        ),
    ] = None,
) -> Answer:
    """Add this site's signature, after comparing the hash with the other sites."""
    from rich.text import Text

    from flhe.provision import rosters, sites

    read = rosters.load(file)
    before = None if previous is None else rosters.in_force(previous)
    if before is not None:  # above a refusal too
        notes().print(Text(rosters.difference(before, read.roster) + "\n"), soft_wrap=True)
    rosters.check_hash(read.roster, roster_hash)
    if before is not None:
        rosters.check_revoked(before, read.roster)
    signed = read.signed(sites.existing(home))
    write(file, signed.to_bytes())
    return _signed(file, signed)


@roster.command(epilog=examples("flhe roster merge sites copy-of-b --out signed"))
def merge(
    file: File,
    others: Annotated[
        list[Path], typer.Argument(metavar="OTHER...", help="Copies that others have signed.")
    ],
    out: Out,
) -> Answer:
    """Unite the signatures of separately signed copies of one roster."""
    from flhe.provision import rosters

    merged = rosters.load(file)
    for other in others:
        merged = merged.merged(rosters.load(other))
    write_new(out, merged.to_bytes())
    return _signed(out, merged)


@roster.command(epilog=examples('flhe roster check signed --roster-hash "$HASH"'))
def check(file: File, roster_hash: Hash) -> Answer:
    """Check that this is the roster with that hash, signed by all."""
    from flhe.provision import rosters

    signed = rosters.load(file)
    rosters.check_hash(signed.roster, roster_hash)
    signed.check_complete()
    text = f"{file}: the hash is right, and all {len(signed.roster.members)} sites have signed"
    return Answer({"file": file, **rosters.data(signed)}, text)


@roster.command(epilog=examples("flhe roster add sites --site d.site --out with-d"))
def add(file: File, site: Site, out: Out) -> Answer:
    """Make the roster with one more site."""
    from flhe.provision import rosters

    return _made(out, rosters.load(file).roster.admitted(rosters.newcomer(site)), file)


@roster.command(epilog=examples("flhe roster remove with-d d --out without-d"))
def remove(
    file: File,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The site.")],
    out: Out,
    collusion: Colluders = None,
    min_survivors: Survivors = None,
) -> Answer:
    """Make the roster without a site, whose key is revoked for good."""
    from flhe.provision import rosters

    before = rosters.load(file).roster
    public = {member.name: member.public for member in before.members}.get(name)
    if public is None:
        raise ConfigError(f"{name}: no site of this roster; flhe roster show {file} lists them")
    less = before.removed(public, collusion=collusion, min_survivors=min_survivors)
    return _made(out, less, file)


@roster.command(epilog=examples("flhe roster replace sites --site a2.site --out with-a2"))
def replace(file: File, site: Site, out: Out) -> Answer:
    """Make the roster with a site's rotated key; the old one is revoked."""
    from flhe.provision import rosters

    return _made(out, rosters.replaced(rosters.load(file).roster, site), file)


def _shown(signed: SignedRoster) -> tuple[dict[str, Any], RenderableType, str]:
    from flhe.provision import rosters

    text = f"{rosters.bounds(signed.roster)}\n\n{rosters.hash_of(signed.roster)}"
    return rosters.data(signed), rosters.table(signed), text


def _made(out: Path, made: Roster, before: Path | None = None) -> Answer:
    """Write an unsigned roster; the answer has the next steps."""
    from flhe.keys.roster.signed_roster import SignedRoster

    unsigned = SignedRoster(made)
    write_new(out, unsigned.to_bytes())
    data, *shown = _shown(unsigned)
    previous = "" if before is None else f" --previous {before}"
    steps = (
        f"\n{out} has no signature yet. Send it to every site. Each looks at it (flhe roster show), "
        "compares the words of the hash with the others over the phone, and then types:\n"
        f"   flhe roster sign {out} --home DIR --roster-hash {made.hash.hex()}{previous}"
    )
    return Answer({"file": out, **data}, *shown, steps)


def _signed(file: Path, signed: SignedRoster) -> Answer:
    """Return the missing signatures of a roster, and the next steps."""
    from flhe.provision import rosters

    if names := sorted(member.name for member in signed.missing):
        steps = f"\n{file} is not signed yet by: {', '.join(names)}"
    else:
        steps = (
            f"\n{file} is signed by all. Each site keeps a copy and puts into its node config:\n"
            f'   flhe-roster="PATH OF {file.name}" flhe-roster-hash="{signed.roster.hash.hex()}"'
        )
    return Answer({"file": file, **rosters.data(signed)}, rosters.hash_of(signed.roster), steps)
