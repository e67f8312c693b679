"""`flhe permit`: let one more federation begin on a node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def permit(
    home: Annotated[Path, typer.Option(metavar="DIR", help="The node's state directory.")],
) -> None:
    """Let one more federation begin on this node: the next `flwr run`, and no later one.

    Run it as the user that the node runs as. The node needs no restart.
    """
    from flhe.provision import permits

    typer.echo(permits.grant(home))
