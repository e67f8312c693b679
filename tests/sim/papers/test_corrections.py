"""docs/corrections.md: every proof runs and shows what it claims, and the page says what it says."""

from __future__ import annotations

import dataclasses
import operator
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import click
import numpy as np
import pytest

from flhe.errors import ConfigError, FlheError
from flhe.math import ring
from flhe_lab.advise import wan
from flhe_lab.papers import sash_plus
from flhe_lab.papers.corrections import batchcrypt, flashe, sash, tables
from flhe_lab.papers.corrections import proof as proving
from flhe_lab.papers.corrections.listing import TITLES, entry, page
from flhe_lab.papers.corrections.proof import (
    VERDICTS,
    Found,
    Paper,
    Proof,
    named,
    of_paper,
    proofs,
)
from flhe_lab.tables.command import sections
from tests.provision.site import COMMANDS, run

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "corrections.md").read_text(encoding="utf-8")
PROOFS = proofs()
NEEDS = {"fedml-map": "torch", "fedml-select": "tenseal", "batchcrypt-exponents": "phe"}


@pytest.mark.parametrize("name", PROOFS)
def test_the_page_says_what_the_proof_shows(name: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    assert entry(PROOFS[name]) in PAGE  # which fails where it does not show it


def test_the_page_has_all_of_them_in_order_and_explains_verdicts() -> None:
    headings = []
    for paper in get_args(Paper):
        headings += [f"## {paper}", *(f"### {proof.name}" for proof in of_paper(paper))]
    assert re.findall(r"^###? .*$", PAGE, re.MULTILINE) == headings
    assert len(headings) == len(PROOFS) + len(TITLES)
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (.+) \|$", PAGE, re.MULTILINE))
    assert rows.pop("verdict") == "means"
    assert rows == VERDICTS


@pytest.mark.parametrize("proof", PROOFS.values(), ids=lambda proof: proof.name)
def test_what_it_names_exists(proof: Proof) -> None:
    for module in proof.module.split(", "):
        assert (ROOT / module).is_file()
    assert proof.name.startswith(proof.paper.lower().split("-")[0])
    words = proof.more.split()
    if words[:1] == ["pytest"]:
        assert (ROOT / words[1]).is_file()
    elif words[:2] == ["flhe", "tables"]:
        assert sections(words[2:])
    elif words:
        command: click.Command = COMMANDS
        while isinstance(command, click.Group):
            words.pop(0)
            command = command.commands[words[0]]
        options = {name for each in command.params for name in each.opts}
        assert {word for word in words if word.startswith("-")} <= options


def test_what_is_not_shown_is_an_error() -> None:
    proof = dataclasses.replace(PROOFS["flashe-ties"], run=lambda: Found("nothing", False))
    for call in (Proof.found, entry):
        with pytest.raises(FlheError, match="flashe-ties shows something else: nothing"):
            call(proof)
    with pytest.raises(ConfigError, match="there is no proof 'x'"):
        named("x")


def test_a_proof_without_a_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sash, "_sash_offset")
    with pytest.raises(ConfigError, match=r"without a text or a proof: \{'sash-offset'\}"):
        proofs.__wrapped__()


# --- the command ---


def _said(*words: str) -> tuple[int, str]:
    result = run("corrections", *words)
    return result.exit_code, " ".join(result.output.split())


def test_the_command_lists_and_runs_them() -> None:
    code, text = _said()
    assert code == 0
    assert all(name.split("-")[0] in text for name in PROOFS)
    code, text = _said("sash-offset")
    proof = PROOFS["sash-offset"]
    assert code == 0
    for part in (proof.verdict, proof.claim, proof.wrong, proof.instead, proof.run().text):
        assert " ".join(part.split()) in text
    assert _said("none")[0] != 0


def test_it_prints_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {name: PROOFS[name] for name in ("flashe-ties", "sash-offset")}
    monkeypatch.setattr(proving, "proofs", lambda: kept)
    text = page()
    assert text.count("### ") == 2
    assert " ".join(text.split()) == _said("--page")[1]


# --- that proofs can fail: where what they attack is mended, they find nothing ---


def _linear(k: ring.Elements, rows: ring.Elements) -> Any:
    return (rows @ k).astype(np.uint32)  # low bits: nothing is rounded


MENDED = {
    "flashe-ties": (flashe, "operator", SimpleNamespace(gt=operator.ge, ge=operator.ge)),
    "sash-bias": (sash, "lwr_masks", _linear),
    "sash-neighbours": (
        sash_plus,
        "bounds_of",
        lambda n, k, c, bounds=sash_plus.bounds_of: bounds(n, k + 50, c),
    ),
    "esafl-links": (wan, "named", lambda _: wan.uniform(1000)),
    "batchcrypt-capacity": (
        batchcrypt,
        "PaperBatch",
        lambda bits=16: SimpleNamespace(slots=lambda n: n // 10, slot_bits=10),
    ),
    "flashe-baseline": (
        tables,
        "FLASHE_MODELS",
        {m: (n * 5 // 4, epochs) for m, (n, epochs) in tables.FLASHE_MODELS.items()},
    ),
}
"""Proof -> what it attacks, and the same where there is nothing wrong."""


@pytest.mark.parametrize("name", MENDED)
def test_what_is_mended_is_no_finding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MENDED[name])
    assert not PROOFS[name].run().shown


@pytest.mark.parametrize(
    "name",
    ["batchcrypt-capacity", "fedml-efficient", "fedml-forty", "sash-bias", "sash-neighbours"],
)
def test_what_depends_on_a_reading_is_left_open(name: str) -> None:
    assert PROOFS[name].verdict == "left open"
    assert "not said" in PROOFS[name].wrong
