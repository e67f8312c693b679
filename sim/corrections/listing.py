"""What the five papers get wrong or leave open, each with a proof that runs.

    python -m flhe.sim.corrections [NAME] [--all] [--page]

Without a name it lists them; with one it says what the paper has, what is wrong, and shows it. `--page`
prints docs/corrections.md from its first paper on: the page is made of what is here and of what the
proofs say.
"""

from __future__ import annotations

from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.table import Table

from flhe.errors import ConfigError, FlheError
from flhe.sim.corrections import (
    batchcrypt,
    claims,
    esafl,
    fedml,
    flashe,
    hours,
    packing,
    sash,
    sparse,
    tables,
)
from flhe.sim.corrections.proof import VERDICTS, Found, Paper, Proof

MODULES = (
    flashe,
    sparse,
    esafl,
    claims,
    packing,
    batchcrypt,
    fedml,
    sash,
    hours,
    tables,
)

PROOFS: dict[str, Proof] = {proof.name: proof for module in MODULES for proof in module.PROOFS}
"""All of them, by name."""

TITLES: dict[Paper, str] = {
    "FLASHE": "Additively Symmetric Homomorphic Encryption for Cross-Silo Federated Learning",
    "ESAFL": "Efficient Secure Additively Homomorphic Encryption for Cross-Silo Federated Learning",
    "BatchCrypt": "Efficient Homomorphic Encryption for Cross-Silo Federated Learning",
    "FedML-HE": "An Efficient Homomorphic-Encryption-Based Privacy-Preserving Federated Learning "
    "System",
    "SASH": "Efficient Secure Aggregation Based on SHPRG For Federated Learning",
}
"""What follows the name in each title."""


def named(name: str) -> Proof:
    """The proof of that name; ConfigError for one that there is not."""
    if name not in PROOFS:
        raise ConfigError(
            f"there is no proof {name!r}; `python -m flhe.sim.corrections` lists all {len(PROOFS)}"
        )
    return PROOFS[name]


def run(proof: Proof) -> Found:
    """Run it; FlheError where it does not show what it claims."""
    found = proof.run()
    if not found.shown:
        raise FlheError(f"{proof.name} shows something else: {found.text}")
    return found


def of_paper(paper: Paper) -> list[Proof]:
    """A paper's proofs, what breaks secrecy first."""
    weights = list(VERDICTS)
    proofs = [proof for proof in PROOFS.values() if proof.paper == paper]
    return sorted(proofs, key=lambda proof: weights.index(proof.verdict))


def entry(proof: Proof) -> str:
    """A section of the page, with what the proof said."""
    more = f" In full: `{proof.more}`." if proof.more else ""
    modules = ", ".join(f"`{module}`" for module in proof.module.split(", "))
    return "\n".join(
        [
            f"### {proof.name}",
            "",
            f"**{proof.verdict}** · {proof.where}",
            "",
            f"- The paper: {proof.claim}.",
            f"- What is wrong: {proof.wrong}",
            f"- Shown by `{proof.command}`: {run(proof).text}{more}",
            f"- Here: {proof.instead} ({modules})",
            "",
        ]
    )


def page() -> str:
    """All papers' sections."""
    parts = []
    for paper in get_args(Paper):
        parts += [f"## {paper}\n", f"*{paper}: {TITLES[paper]}*\n"]
        parts += [entry(proof) for proof in of_paper(paper)]
    return "\n".join(parts)


def listing() -> Table:
    """One line each."""
    out = Table(title="what the papers get wrong or leave open")
    for heading in ("name", "verdict", "where", "the paper"):
        out.add_column(heading)
    for paper in get_args(Paper):
        for proof in of_paper(paper):
            out.add_row(proof.name, proof.verdict, proof.where, proof.claim)
        out.add_section()
    return out


def main(
    name: Annotated[str, typer.Argument(help="Which proof to run.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Run all of them.")] = False,
    as_page: Annotated[bool, typer.Option("--page", help="Print docs/corrections.md.")] = False,
) -> None:
    """Show what the papers get wrong or leave open."""
    console = Console(width=120)
    try:
        if as_page:
            typer.echo(page(), nl=False)
            return
        if not name and not every:
            console.print(listing())
            return
        for proof in PROOFS.values() if every else [named(name)]:
            found = run(proof)
            console.print(f"{proof.name}: {proof.verdict}", style="bold")
            for label, text in (
                (f"{proof.paper}, {proof.where}", proof.claim),
                ("what is wrong", proof.wrong),
                ("shown", found.text),
                ("here", f"{proof.instead} ({proof.module})"),
            ):
                console.print(f"  {label}: {text}", highlight=False, markup=False)
    except FlheError as error:
        typer.echo(f"flhe: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None
