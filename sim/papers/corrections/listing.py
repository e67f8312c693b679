"""Answers of `flhe corrections`: errors and gaps of the papers, each with a proof."""

from __future__ import annotations

from dataclasses import asdict
from typing import get_args

from rich.table import Table

from flhe.answer import Answer, Exact, table, working
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
    """Return one row for each."""
    out = table(
        ("name", "verdict"),
        caption="`flhe corrections NAME` shows the claim, the error and the proof.",
    )
    for paper in get_args(Paper):
        for proof in of_paper(paper):
            out.add_row(proof.name, proof.verdict)
        out.add_section()
    return out


def corrections(name: str, *, as_page: bool) -> Answer:
    """List the proofs; or run one; or print the page, for which all run."""
    if as_page:
        with working("running all proofs"):
            text = page()
        return Answer({"page": text}, Exact(text))
    if not name:
        return Answer([asdict(proof) for proof in proofs().values()], listing())
    proof = named(name)
    found = proof.found()
    return Answer(
        {**asdict(proof), "found": asdict(found)},
        f"{proof.name}: {proof.verdict}\n"
        f"- {proof.paper}, {proof.where}: {proof.claim}\n"
        f"- what is wrong: {proof.wrong}\n"
        f"- shown: {found.text}\n"
        f"- here: {proof.instead} ({proof.module})",
    )
