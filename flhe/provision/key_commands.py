"""`flhe keys ...`: back up a site's keys, and restore them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flhe.answer import Answer, working
from flhe.command_group import examples, option
from flhe.errors import ConfigError
from flhe.provision.public_files import check_new

if TYPE_CHECKING:
    from flhe.node.backup import Backup

keys = typer.Typer(no_args_is_help=True, help="A site's keys: back up, restore.")

Phrase = Annotated[Path | None, option("Read the passphrase from this file's first line.", "FILE")]


@keys.command(
    epilog=examples("flhe keys backup --home state --out a.backup --passphrase-file phrase")
)
def backup(
    home: Annotated[Path, option("The state directory.", "DIR")],
    out: Annotated[Path, option("The backup.", "FILE", callback=check_new)],
    passphrase_file: Phrase = None,
) -> Answer:
    """Write the identity and the keys of sealed models, under a passphrase."""
    from flhe.provision import backups

    phrase = _passphrase(passphrase_file, new=True)
    with working("deriving a key from the passphrase"):
        kept, lost = backups.backup(home, out, phrase)
    left_out = (
        f"Left out, because they are damaged or of another version: keys of {lost} more.\n"
        if lost
        else ""
    )
    return _kept(
        out,
        kept,
        f"{left_out}Keep the backup and the passphrase apart, and neither on the node's own machine. "
        "Together they give this site's identity and its models.\nEach new epoch has new keys: make "
        "another backup when a model was sealed that must open later.",
    )


@keys.command(
    epilog=examples("flhe keys restore a.backup --home restored --passphrase-file phrase")
)
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")],
    home: Annotated[Path, option("A directory that does not exist yet.", "DIR")],
    passphrase_file: Phrase = None,
) -> Answer:
    """Create a state directory from a backup."""
    from flhe.provision import backups

    phrase = _passphrase(passphrase_file, new=False)
    with working("deriving a key from the passphrase"):
        kept = backups.restore(file, home, phrase)
    return _kept(
        home,
        kept,
        "Start a node on it only if the original is gone for good: two nodes of one identity disturb a "
        "federation. The node agrees with the others on new keys first, and they hand it the model.\n"
        f"Open models that were sealed before, and then delete {home / 'archive'}:\n"
        f"   flhe open MODEL --key {home}",
    )


def _kept(place: Path, kept: Backup, more: str) -> Answer:
    """Return what a backup has, and where it is."""
    public, count = kept.identity.public, len(kept.models)
    models = f"the model keys of {count} epoch{'s' * (count != 1)}"
    text = f"{place}: the identity {public.hex()[:16]} and {models}.\n{more}"
    return Answer({"path": place, "key": public, "epochs": count}, text)


def _passphrase(path: Path | None, *, new: bool) -> str:
    """Return the passphrase from a file, or ask for it at the terminal, twice for a new one."""
    from flhe.provision.backups import passphrase_in

    if path is not None:
        return passphrase_in(path)
    if not sys.stdin.isatty():
        raise ConfigError(
            "there is no terminal to ask for a passphrase: use --passphrase-file FILE"
        )
    return str(typer.prompt("Passphrase", hide_input=True, confirmation_prompt=new))
