"""What `flhe corrections` says: what the papers get wrong or leave open, and proofs of it."""

from __future__ import annotations

from typing import get_args

from rich.console import Console
from rich.table import Table

from flhe_lab.papers.corrections.proof import Paper, Proof, named, of_paper, proofs

TITLES: dict[Paper, str] = {
    "FLASHE": "Additively Symmetric Homomorphic Encryption for Cross-Silo Federated Learning",
    "ESAFL": "Efficient Secure Additively Homomorphic Encryption for Cross-Silo Federated Learning",
    "BatchCrypt": "Efficient Homomorphic Encryption for Cross-Silo Federated Learning",
    "FedML-HE": "An Efficient Homomorphic-Encryption-Based Privacy-Preserving Federated Learning "
    "System",
    "SASH": "Efficient Secure Aggregation Based on SHPRG For Federated Learning",
}
"""What follows the name in each title."""


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
            f"- Shown by `flhe corrections {proof.name}`: {proof.found().text}{more}",
            f"- Here: {proof.instead} ({modules})",
            "",
        ]
    )


def page() -> str:
    """docs/corrections.md, from its first paper on."""
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


def corrections(name: str, *, every: bool, as_page: bool) -> None:
    """List the proofs; or run one, or all; or print the page."""
    console = Console(width=120)
    if as_page:
        print(page(), end="")
        return
    if not name and not every:
        console.print(listing())
        return
    for proof in proofs().values() if every else [named(name)]:
        found = proof.found()
        console.print(f"{proof.name}: {proof.verdict}", style="bold")
        for label, text in (
            (f"{proof.paper}, {proof.where}", proof.claim),
            ("what is wrong", proof.wrong),
            ("shown", found.text),
            ("here", f"{proof.instead} ({proof.module})"),
        ):
            console.print(f"  {label}: {text}", highlight=False, markup=False)
