"""`flhe keys ...`: back up a site's keys, restore them, and rotate its identity."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flhe.errors import ConfigError
from flhe.provision.public_files import check_new

keys = typer.Typer(no_args_is_help=True, help="A site's keys: back up, restore, rotate.")

Phrase = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Read the passphrase from this file's first line."),
]


@keys.command()
def backup(
    home: Annotated[Path, typer.Option(metavar="DIR", help="The state directory.")],
    out: Annotated[Path, typer.Option(metavar="FILE", callback=check_new, help="The backup.")],
    passphrase_file: Phrase = None,
) -> None:
    """Write the identity and the keys of sealed models, under a passphrase."""
    from flhe.provision import backups

    kept, lost = backups.backup(home, out, _passphrase(passphrase_file, new=True))
    typer.echo(f"{out}: the identity {kept.identity.public.hex()[:16]} and {_models(kept.models)}.")
    if lost:
        typer.echo(
            f"Left out, because they are damaged or of another version: keys of {lost} more."
        )
    typer.echo(
        "Keep it and the passphrase apart, neither on the node's own machine: together they "
        "give\nthis site's identity and its models. Each new epoch has new keys: make another "
        "backup when a model was sealed that\nmust open later."
    )


@keys.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")],
    home: Annotated[Path, typer.Option(metavar="DIR", help="A directory that is not there yet.")],
    passphrase_file: Phrase = None,
) -> None:
    """Create a state directory from a backup."""
    from flhe.provision import backups

    kept = backups.restore(file, home, _passphrase(passphrase_file, new=False))
    typer.echo(
        f"{home}: the identity {kept.identity.public.hex()[:16]} and {_models(kept.models)}.\n"
        "Start a node on it only if the original is gone for good: two nodes of one identity disturb a "
        "federation.\nIt agrees with the others on new keys first, and they hand it the model.\n"
        f"Models that were sealed before: flhe open MODEL --key {home}. Once that is done, delete "
        f"{home / 'archive'}."
    )


@keys.command()
def rotate(
    home: Annotated[Path, typer.Option(metavar="OLD", help="The state directory so far.")],
    new_home: Annotated[
        Path, typer.Option(metavar="NEW", help="The one to be; it is not there yet.")
    ],
    name: Annotated[str, typer.Option(help="The site's name in the roster.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.site", help="The request; by default NAME.site.")
    ] = None,
) -> None:
    """Make a new identity, and a request to take the old one's place."""
    from flhe.provision import sites

    typer.echo(sites.rotate(home, new_home, name, out))
    typer.echo(
        f"4. Go on with {home} until all sites pin the new roster; then set flhe-home to {new_home}.\n"
        f"   Models sealed until then open with {home}: back it up before you delete it."
    )


def _models(models: tuple[object, ...]) -> str:
    return f"the model keys of {len(models)} epoch" + "s" * (len(models) != 1)


def _passphrase(path: Path | None, *, new: bool) -> str:
    """Return the passphrase from a file, or from the terminal, where a new one is asked for twice."""
    from flhe.provision.backups import passphrase_in

    if path is not None:
        return passphrase_in(path)
    if not sys.stdin.isatty():
        raise ConfigError(
            "there is no terminal to ask for a passphrase: use --passphrase-file FILE"
        )
    typed: str = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=new)
    return typed
