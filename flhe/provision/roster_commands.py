"""`flhe roster ...`: collect sites into a roster, sign it, check it, and change it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flhe.errors import ConfigError
from flhe.provision.public_files import check_new, write_new
from flhe.provision.public_files import replace as write

if TYPE_CHECKING:
    from flhe.keys.roster.roster import Roster
    from flhe.keys.roster.signed_roster import SignedRoster

DEFAULT_COLLUSION = "(N - 1) // 3 of N sites: 0 of 3, 1 of 4, 2 of 7, 3 of 10"

roster = typer.Typer(no_args_is_help=True, help="Who takes part: make, sign and check rosters.")


File = Annotated[Path, typer.Argument(metavar="FILE", help="The roster file.")]
Out = Annotated[
    Path, typer.Option(metavar="NEW", callback=check_new, help="File of the new roster.")
]
Site = Annotated[Path, typer.Option(metavar="FILE.site", help="What the site has sent.")]
Colluders = Annotated[
    int | None,
    typer.Option(
        metavar="C",
        help="Sites that may conspire with the server; unless given, as many as before, and in the "
        f"first roster {DEFAULT_COLLUSION}.",
    ),
]
Survivors = Annotated[
    int | None, typer.Option(metavar="N", help="Fewest updates in a sum that is opened.")
]
Hash = Annotated[str, typer.Option(metavar="HEX", help="The hash that the sites agreed on.")]


@roster.command()
def new(
    out: Out,
    site: Annotated[
        list[Path], typer.Option(metavar="FILE.site", help="What a site has sent; one for each.")
    ],
    scheme: Annotated[
        list[str], typer.Option(metavar="NAME", help="A scheme that may run; one for each.")
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
) -> None:
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
    _made(out, made)
    if collusion is None:
        typer.echo(
            f"\nThe bound of {made.collusion} that may conspire is the default, "
            f"{DEFAULT_COLLUSION}.\n--collusion C sets another, before any site signs."
        )


@roster.command()
def show(file: File) -> None:
    """Show the sites, the bounds, who has signed, and the hash in words."""
    from flhe.provision import rosters

    _show(rosters.load(file))


@roster.command()
def sign(
    file: File,
    home: Annotated[Path, typer.Option(metavar="DIR", help="This site's state directory.")],
    roster_hash: Hash,
    previous: Annotated[
        Path | None,
        typer.Option(
            metavar="OLD",
            help="The roster in force so far: says what differs, and lets no revoked key come back.",
        ),
    ] = None,
) -> None:
    """Add this site's signature, after comparing the hash with the other sites."""
    from flhe.provision import rosters, sites

    read = rosters.load(file)
    before = None if previous is None else rosters.in_force(previous)
    if before is not None:
        typer.echo(rosters.difference(before, read.roster) + "\n")
    rosters.check_hash(read.roster, roster_hash)
    if before is not None:
        rosters.check_revoked(before, read.roster)
    signed = read.signed(sites.existing(home))
    write(file, signed.to_bytes())
    _signed(file, signed)


@roster.command()
def merge(
    file: File,
    others: Annotated[
        list[Path], typer.Argument(metavar="OTHER...", help="Copies that others have signed.")
    ],
    out: Out,
) -> None:
    """Unite the signatures of separately signed copies of one roster."""
    from flhe.provision import rosters

    merged = rosters.load(file)
    for other in others:
        merged = merged.merged(rosters.load(other))
    write_new(out, merged.to_bytes())
    _signed(out, merged)


@roster.command()
def check(file: File, roster_hash: Hash) -> None:
    """Say whether this is the roster with that hash, signed by all."""
    from flhe.provision import rosters

    signed = rosters.load(file)
    rosters.check_hash(signed.roster, roster_hash)
    signed.check_complete()
    typer.echo(f"{file}: the hash is right, and all {len(signed.roster.members)} sites have signed")


@roster.command()
def add(file: File, site: Site, out: Out) -> None:
    """Make the roster with one more site."""
    from flhe.provision import rosters

    _made(out, rosters.load(file).roster.admitted(rosters.newcomer(site)), file)


@roster.command()
def remove(
    file: File,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The site.")],
    out: Out,
    collusion: Colluders = None,
    min_survivors: Survivors = None,
) -> None:
    """Make the roster without a site, whose key is revoked for good."""
    from flhe.provision import rosters

    before = rosters.load(file).roster
    public = {member.name: member.public for member in before.members}.get(name)
    if public is None:
        raise ConfigError(f"{name}: no site of this roster; flhe roster show {file} lists them")
    less = before.removed(public, collusion=collusion, min_survivors=min_survivors)
    _made(out, less, file)


@roster.command()
def replace(file: File, site: Site, out: Out) -> None:
    """Make the roster with a site's rotated key; the old one is revoked."""
    from flhe.provision import rosters

    _made(out, rosters.replaced(rosters.load(file).roster, site), file)


def _show(signed: SignedRoster) -> None:
    from rich.console import Console

    from flhe.provision import rosters

    Console().print(rosters.table(signed))
    typer.echo(f"{rosters.bounds(signed.roster)}\n\n{rosters.hash_of(signed.roster)}")


def _made(out: Path, made: Roster, before: Path | None = None) -> None:
    """Write an unsigned roster, and print the next steps."""
    from flhe.keys.roster.signed_roster import SignedRoster

    unsigned = SignedRoster(made)
    write_new(out, unsigned.to_bytes())
    _show(unsigned)
    previous = "" if before is None else f" --previous {before}"
    typer.echo(
        f"\n{out} has no signature yet. Send it to every site. Each looks at it (flhe roster show), "
        "compares the\nwords of the hash with the others over the phone, and then types:\n"
        f"   flhe roster sign {out} --home DIR --roster-hash {made.hash.hex()}{previous}"
    )


def _signed(file: Path, signed: SignedRoster) -> None:
    """Print the missing signatures of a roster, and the next steps."""
    from flhe.provision import rosters

    typer.echo(rosters.hash_of(signed.roster))
    if names := sorted(member.name for member in signed.missing):
        typer.echo(f"\n{file} is not signed yet by: {', '.join(names)}")
        return
    typer.echo(
        f"\n{file} is signed by all. Each site keeps a copy and puts into its node config:\n"
        f'   flhe-roster="PATH OF {file.name}" flhe-roster-hash="{signed.roster.hash.hex()}"'
    )
