"""A whole deployment on this machine, for a few minutes: see docs/deploy.md.

.venv/bin/python deploy/loopback.py --scheme flashe --scheme sash
"""

from __future__ import annotations

import typer

from flhe.sim.rehearsal.command import main

if __name__ == "__main__":
    app = typer.Typer(context_settings={"help_option_names": ["--help", "-h"]})
    app.command()(main)
    app()
