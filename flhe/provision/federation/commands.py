"""`flhe federation ...`: a coordinator collects sites' cards and publishes one file for them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flhe.answer import Answer, confirm, notes
from flhe.command_group import examples, option

if TYPE_CHECKING:
    from flhe.provision.federation.office import Office

federation = typer.Typer(
    no_args_is_help=True, help="A federation's coordinator: collect sites, publish one file."
)

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="The federation's directory, of `new`.")
]


@federation.command(
    epilog=examples(
        "flhe federation new neuro --address fl.example.org:8000 \\\n"
        "--scheme flashe --reviewer reviewer.pub"
    )
)
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name: a-z, 0-9 and '-'.")],
    address: Annotated[str, option("The SuperLink, as sites reach it.", "HOST:PORT")],
    reviewer: Annotated[
        list[Path], option("Public key of a reviewer of apps; repeatable.", "FILE.pub")
    ],
    scheme: Annotated[list[str], option("A scheme that may run; repeatable.", "NAME")],
    min_survivors: Annotated[int, option("Fewest updates in a sum that is opened.", "N")] = 2,
    collusion: Annotated[
        int, option("Sites that may conspire with the server; -1: fewer than a third.", "C")
    ] = -1,
    allow: Annotated[
        list[str] | None, option("A limit that holds at every site; repeatable.", "NAME=VALUE")
    ] = None,
    directory: Annotated[
        Path | None, option("Its directory; default: ./NAME.", "DIR", "--dir")
    ] = None,
) -> Answer:
    """Found a federation: a directory, the coordinator's key, and TLS."""
    from flhe.provision.federation.founding import found
    from flhe.provision.federation.office import Terms

    terms = Terms(name, address, tuple(scheme), collusion, min_survivors, tuple(allow or ()))
    return found(directory or Path(name), terms, reviewer)


@federation.command(epilog=examples("flhe federation add cardio d.card --yes"))
def add(
    directory: Directory,
    cards: Annotated[list[Path], typer.Argument(metavar="CARD...", help="Cards of sites.")],
    yes: Annotated[bool, typer.Option("--yes", help="The words are compared: do not ask.")] = False,
) -> Answer:
    """Take in cards of new sites, and of sites that have rotated a key.

    Compare each new site's words by telephone first.
    """
    from flhe.provision import rosters
    from flhe.provision.federation.card import Card
    from flhe.provision.federation.office import Office

    office = Office(directory)
    known = {card.public for card in office.cards()} if office.terms else set()
    found = [Card.read(path) for path in cards]
    for card in found:
        office.check_card(card)
    fresh = [card for card in found if card.public not in known]
    if fresh:
        notes().print(rosters.table((card.enrolment.member for card in fresh), "new site"))
        if not yes:
            confirm("Have these sites read the same words to you?", "--yes")
    for card in found:
        office.keep(card)
    total = len(office.cards())
    text = "\n".join(f"{card.name}: {'new key' if card in fresh else 'known'}" for card in found)
    text += f"\n{total} sites. With all cards in: flhe federation publish {directory}"
    sites = [{"name": card.name, "key": card.public, "new": card in fresh} for card in found]
    return Answer({"cards": sites, "sites": total}, text)


@federation.command(epilog=examples("flhe federation remove cardio c"))
def remove(
    directory: Directory,
    name: Annotated[str, typer.Argument(metavar="SITE", help="The site's name.")],
) -> Answer:
    """Remove a site; the next published roster revokes its key for good."""
    from flhe.provision.federation.office import Office

    office = Office(directory)
    office.remove(name)
    return Answer(
        {"removed": name},
        f"{name} is removed. Revoke its key at all sites: flhe federation publish {directory}\n"
        f"Tell Flower too: flwr supernode unregister ID {office.terms.name}",
    )


@federation.command(epilog=examples("flhe federation publish cardio"))
def publish(directory: Directory) -> Answer:
    """Write the one file for the sites, and say what comes next."""
    from flhe.keys.roster import fingerprint
    from flhe.provision import rosters
    from flhe.provision.federation.office import Office

    office = Office(directory)
    made = office.publish()
    command, service = superlink(office), unit(office)
    register = [
        f"flwr supernode register {path} {made.name}"
        for path in sorted((office.root / "supernodes").glob("*.pub"))
    ]
    lines = "\n".join(f"   {line}" for line in register)
    steps = f"""{office.file}, number {made.serial}.
1. Send it to every site: flhe site join {office.file.name}
2. The sites compare these words with each other, and your key's with you:
{fingerprint.shown("hash", made.roster.hash)}
3. Start the SuperLink:
   {shlex.join(command)}
   As a service: cp {service} /etc/systemd/system/ && systemctl enable --now flower-superlink
4. Register the SuperNodes; `flwr` finds the SuperLink by {office.root}/config.toml in ~/.flwr:
{lines}"""
    data = {"file": office.file, "number": made.serial, "terms": made.terms}
    data |= {"roster": rosters.data(made.roster)}
    shown = (rosters.table(made.roster.members), rosters.bounds(made.roster), steps)
    return Answer({**data, "superlink": command, "register": register}, *shown)


def superlink(office: Office) -> list[str]:
    """Return the command line of the federation's SuperLink."""
    tls, port = office.tls, office.terms.address.rpartition(":")[2]
    script = Path(sys.executable).parent / "flower-superlink"
    return [
        f"{script}",
        *("--host", "0.0.0.0", "--port", port),  # noqa: S104  # sites connect to it
        *("--ssl-ca-certfile", f"{tls.authority.absolute()}"),
        *("--ssl-certfile", f"{tls.certificate.absolute()}"),
        *("--ssl-keyfile", f"{tls.key.absolute()}"),
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
    ]


def unit(office: Office) -> Path:
    """Write the SuperLink's systemd unit, and the connection for `flwr`; return the unit's file."""
    from flhe.provision.units import read
    from flhe.wire import files

    path = office.root / "flower-superlink.service"
    text = read(path.name)
    files.replace(path, [text.replace("@COMMAND@", shlex.join(superlink(office))).encode()])
    terms = office.terms
    authority = f"{office.tls.authority.absolute()}"
    address = f'address = "{terms.address}"\nroot-certificates = "{authority}"\n'
    config = f'[superlink]\ndefault = "{terms.name}"\n\n[superlink.{terms.name}]\n{address}'
    files.replace(office.root / "config.toml", [config.encode()])
    return path
