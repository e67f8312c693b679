"""`flhe site ...`: a site sets itself up, joins a federation by one file, starts its node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flhe.answer import Answer, working
from flhe.command_group import examples, option

site = typer.Typer(no_args_is_help=True, help="A site: set it up, join, start, look at it.")

Federation = Annotated[
    str,
    typer.Argument(metavar="FEDERATION", help="The federation's name, as its coordinator says."),
]
GATE = "127.0.0.1:9093"
"""Where a gate listens by default."""
Directory = Annotated[
    Path | None,
    option(
        "Directory of all files. Default: the system's for root, otherwise ~/.flhe/FEDERATION.",
        "DIR",
        "--dir",
    ),
]


@site.command(epilog=examples("flhe site init cardio --name e --dir site-e --yes"))
def init(
    federation: Federation,
    name: Annotated[str, typer.Option(help="This site's name in the roster.")],
    directory: Directory = None,
    home: Annotated[
        Path | None, option("State directory, with --dir. Default: state inside it.", "DIR")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Make what the plan shows; do not ask.")
    ] = False,
) -> Answer:
    """Set this site up: identity, keys, settings, and a card for the coordinator.

    The plan is shown first. Existing files stay as they are.
    """
    from flhe.provision.site import setup
    from flhe.provision.site.layout import Layout

    return setup.init(Layout.of(federation, directory, home), name, yes=yes)


@site.command(epilog=examples('flhe site join cardio.flhe --dir site-a --terms "$TERMS"'))
def join(
    file: Annotated[Path, typer.Argument(metavar="FILE.flhe", help="The coordinator's file.")],
    directory: Directory = None,
    terms: Annotated[str, option("Hash of the file's terms: all words are compared.", "HEX")] = "",
) -> Answer:
    """Agree to a federation, and write the node's files.

    All of the file is shown first, with the words to compare by telephone.
    """
    from flhe.provision.federation.published import Published
    from flhe.provision.site import joining
    from flhe.provision.site.layout import Layout

    published = Published.read(file)
    return joining.join(Layout.of(published.name, directory), published, terms)


@site.command(epilog=examples("flhe site start cardio --dir site-a"))
def start(
    federation: Federation,
    directory: Directory = None,
    gate_at: Annotated[
        str, option("This site's gate.", "HOST:PORT", "--gate", envvar="FLHE_GATE")
    ] = GATE,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run here, also where a unit is installed.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of its own processes. Default: a free one.")
    ] = 0,
) -> Answer:
    """Check the node as `flhe doctor` does, then run its SuperNode.

    Where a systemd unit is installed, the command that starts it is printed.
    """
    from flhe.provision.site import start as starting
    from flhe.provision.site.layout import Layout

    with working("checking the node"):
        layout = Layout.of(federation, directory)
    return starting.start(layout, gate_at, port, foreground=foreground)


@site.command(epilog=examples("flhe site status cardio --dir site-a"))
def status(
    federation: Federation,
    directory: Directory = None,
    page: Annotated[
        bool, typer.Option("--page", help="Serve a page for a browser here, until Ctrl-C.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the page. Default: a free one.")
    ] = 0,
) -> Answer:
    """Show who this site is, its federation, its rounds, budget and refusals."""
    from flhe.provision.site import status as looking
    from flhe.provision.site.layout import Layout

    layout = Layout.of(federation, directory)
    if page:
        looking.serve(layout, port)
    return looking.status(layout)


@site.command(epilog=examples("flhe site rotate cardio --dir site-a --yes"))
def rotate(
    federation: Federation,
    directory: Directory = None,
    yes: Annotated[bool, typer.Option("--yes", help="Make the key; do not ask.")] = False,
) -> Answer:
    """Make a new identity and a card that puts it in the old one's place.

    The old key stays in use until the site joins the file that lists the new one.
    """
    from flhe.provision.site import rotation
    from flhe.provision.site.layout import Layout

    return rotation.rotate(Layout.of(federation, directory), yes=yes)
