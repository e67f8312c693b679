"""`python -m flhe.sim.corrections [NAME] [--all] [--page]`."""

from __future__ import annotations

import typer

from flhe.sim.corrections.listing import main

if __name__ == "__main__":
    typer.run(main)
