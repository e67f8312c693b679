"""Mutants: the library with one thing wrong, or one guard gone. Tests should fail.

`python tests/mutate.py --count 120 --seed 21 --kind mutants|guards [--only flhe/keys] [--json FILE]`
works on a copy of the project. On each mutant it runs the tests of the folder that mirrors the file's,
the module of the same name first, then SHARED, to the first that fails. The same seed and sources give
the same sites and the same examples of hypothesis. With FILE, what was stopped goes on.

Survivors are listed for a person to judge: some change nothing that anybody could notice.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.progress import track

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.guards import copy_to, pytest_in  # noqa: E402
from tests.sites import Site, sites  # noqa: E402

ROOMS = [
    *("keys", "sums", "node", "training", "mods", "schemes", "coding"),
    *("gate", "provision"),
]
FOLDERS = [*(f"flhe/{room}" for room in ROOMS), "strategies"]
SHARED = [
    f"tests/{name}.py" for name in ("test_laws", "test_codec_laws", "strategies/test_round_vectors")
]
LIMIT_S = 1200.0
"""How long the tests of one mutant may take: it may make the library hang."""


def mirror(site: Site) -> Path:
    """The folder of tests that mirrors that of a site's file."""
    folder = ROOT / "tests" / Path(site.file).parent.as_posix().removeprefix("flhe/")
    while not folder.is_dir():
        folder = folder.parent
    return folder


def tests_of(site: Site) -> list[str]:
    """Modules that are tried on a mutant, in order."""
    same = f"test_{Path(site.file).name}"
    modules = sorted(mirror(site).rglob("test_*.py"), key=lambda path: (path.name != same, path))
    return list(dict.fromkeys([*(path.relative_to(ROOT).as_posix() for path in modules), *SHARED]))


def tried(place: Path, modules: list[str]) -> str | None:
    """The first test that fails in the copy, "" if none does, None at the time limit."""
    words = ["-x", "--hypothesis-seed=0", f"--basetemp={place / 'tmp'}", *modules]
    code, lines = pytest_in(place, *words, limit=LIMIT_S)
    failed = [line.split()[1] for line in lines if line.startswith("FAILED ")]
    return None if code == -1 else (failed[0] if failed else "on import") if code else ""


def judge(place: Path, site: Site) -> dict[str, Any]:
    """Whether a test fails with a mutant."""
    path, began = place / site.file, time.monotonic()
    source = path.read_bytes()
    path.write_bytes(site.apply(source))
    try:
        by = tried(place, tests_of(site))
    finally:
        path.write_bytes(source)
    return {
        "verdict": "time" if by is None else "killed" if by else "survived",
        "by": by,
        "seconds": round(time.monotonic() - began, 1),
        "diff": f"{site.file}:{site.line}: {site.diff(source)}",
    }


def summary(done: list[tuple[Site, dict[str, Any]]]) -> None:
    """Survivors, and how many were killed."""
    for _, outcome in sorted(done, key=lambda one: (one[0].file, one[0].line)):
        if outcome["verdict"] == "survived":
            print(outcome["diff"])
    counts = Counter(outcome["verdict"] for _, outcome in done)
    killed, late = counts["killed"], counts["time"]
    print(f"{killed + late} of {len(done)} killed, {late} of them by time")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--kind", choices=["mutants", "guards"], default="mutants")
    parser.add_argument("--only", default="", help="a folder or file")
    parser.add_argument("--json", type=Path, help="results, taken up again if they are there")
    asked = parser.parse_args()
    every = [
        site
        for file in sorted(path for of in FOLDERS for path in (ROOT / of).glob("**/*.py"))
        if (name := file.relative_to(ROOT).as_posix()).startswith(asked.only)
        for site in sites(asked.kind, name, file.read_bytes())
    ]
    taken = random.Random(asked.seed).sample(every, min(asked.count, len(every)))
    results: dict[str, dict[str, Any]] = {}
    if asked.json and asked.json.exists():
        results = json.loads(asked.json.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="flhe-mutants-") as folder:
        place = Path(folder).resolve()
        copy_to(place)
        for site in track(taken, description=asked.kind):
            if str(site) not in results:
                results[str(site)] = judge(place, site)
                if asked.json:
                    asked.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    summary([(site, results[str(site)]) for site in taken])
    return 0


if __name__ == "__main__":
    sys.exit(main())
