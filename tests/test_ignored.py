"""Git ignores what the commands in README and docs write into a checkout, and nothing of ours."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from flhe_lab.tables.section import Plan

ROOT = Path(__file__).parents[1]
WRITTEN = (
    "model.flhe",
    "model.npz",
    "model.pt",
    "rounds.jsonl",
    "board/events",
    "privacy_audit.png",
    "privacy_audit.json",
    "privacy_audit_curve.png",
    "what_a_server_learns.md",
    "what_a_server_learns.json",
    "masks.png",
    "hospital-a.site",
    "roster",
    "cardio.roster",
    "cardio-2.roster",
    "flhe.flhe-app.0-1-0.fab",
    *(
        f"{Plan(quick=quick, data_dir='').name}{end}"
        for quick in (True, False)
        for end in (".md", "/x")
    ),
)


def git(*arguments: str) -> list[str]:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("no checkout of git")
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines()


def test_what_printed_commands_write_is_ignored() -> None:
    assert set(git("check-ignore", "--no-index", *WRITTEN)) == set(WRITTEN)


def test_nothing_of_ours_is_ignored() -> None:
    assert git("ls-files", "--cached", "--ignored", "--exclude-standard") == []
    ours = ("docs/results.md", "docs/results/x.png", "docs/roster", "tests/x.npz", "x.json")
    assert git("check-ignore", "--no-index", *ours) == []
