"""`flhe shelf`: sign reviewed apps, and serve them to a SuperLink."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from flhe.command_group import Commands

app = typer.Typer(
    cls=Commands,
    help="Sign apps for SuperNodes that run reviewed apps only, and serve them to a SuperLink.",
    no_args_is_help=True,
)


@app.command()
def sign(
    fab: Annotated[Path, typer.Argument(help="The app, as `flwr build` made it.")],
    key: Annotated[Path, typer.Option(help="The reviewer's Ed25519 key, of OpenSSH.")],
) -> None:
    """Sign a reviewed app."""
    from flhe_app import shelf

    shelf.add_signature(fab, shelf.reviewer_key(key), int(time.time()))


@app.command()
def trust(
    publics: Annotated[list[Path], typer.Argument(help="Reviewers' public keys, of OpenSSH.")],
) -> None:
    """Print the file for a SuperNode's --trusted-entities."""
    from flhe_app import shelf

    typer.echo(shelf.trusted_entities([shelf.reviewer_public(path) for path in publics]), nl=False)


@app.command()
def serve(
    directory: Annotated[Path, typer.Argument(help="Directory of apps and their signatures.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8081,
) -> None:
    """Serve apps to the SuperLink beside it."""
    from flhe_app import shelf

    with shelf.serving(directory, host, port) as url:
        typer.echo(f"start the SuperLink with FLWR_SUPERGRID_API_URL={url}")
        threading.Event().wait()
