"""`flhe shelf`: sign reviewed apps, and serve them to a SuperLink."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from flhe.answer import Answer, notes
from flhe.command_group import Commands, examples

app = typer.Typer(
    cls=Commands,
    help="Sign apps for SuperNodes that run reviewed apps only, and serve them to a SuperLink.",
    no_args_is_help=True,
)


@app.command(epilog=examples("flhe shelf sign app.fab --key reviewer"))
def sign(
    fab: Annotated[Path, typer.Argument(help="The app, as `flwr build` made it.")],
    key: Annotated[Path, typer.Option(help="The reviewer's Ed25519 key, of OpenSSH.")],
) -> Answer:
    """Sign a reviewed app."""
    from flhe.provision.federation.reviewers import key_id
    from flhe_app import shelf

    private = shelf.reviewer_key(key)
    shelf.add_signature(fab, private, int(time.time()))
    signer = key_id(private.public_key())
    return Answer({"file": fab, "key": signer}, f"{fab}: signed by {signer}")


@app.command(epilog=examples("flhe shelf serve apps --port 8081"))
def serve(
    directory: Annotated[Path, typer.Argument(help="Directory of apps and their signatures.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8081,
) -> None:
    """Serve apps to the SuperLink beside it."""
    from flhe_app import shelf

    with shelf.serving(directory, host, port) as url:
        notes().print(f"start the SuperLink with FLWR_SUPERGRID_API_URL={url}", highlight=False)
        threading.Event().wait()
