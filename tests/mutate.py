"""Mutants: the library with one thing wrong, or one guard gone. Tests should fail.

`python tests/mutate.py --count 120 --seed 21 --kind mutants|guards [--only flhe/keys]` works on a
copy of the project. Each mutant is tried by the tests of the folder that mirrors its file's, the
module of the same name first, and by those of SHARED. The same seed and sources give the same mutants
and the same examples of hypothesis.

Survivors are listed for a person to judge: some change nothing that anybody could notice.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from rich.progress import track

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.guards import copy_to, run  # noqa: E402
from tests.sites import Site, sites  # noqa: E402

ROOMS = ["keys", "sums", "node", "training", "mods", "schemes", "coding"]
FOLDERS = [*(f"flhe/{room}" for room in ROOMS), "strategies"]
SHARED = ("test_laws.py", "strategies/test_round_vectors.py")
LIMIT_S = 900.0
"""How long the tests of one mutant may take: it may make the library hang."""


def modules_for(site: Site) -> tuple[str, ...]:
    """Modules that are to be tried, in order, below `tests/`."""
    folder = ROOT / "tests" / Path(site.file).parent.as_posix().removeprefix("flhe/")
    while not folder.is_dir():
        folder = folder.parent
    same = f"test_{Path(site.file).name}"
    found = sorted(folder.rglob("test_*.py"), key=lambda path: (path.name != same, path))
    return (*(path.relative_to(ROOT / "tests").as_posix() for path in found), *SHARED)


def verdict(place: Path, site: Site) -> str:
    """Whether a test fails with it, in the copy."""
    path = place / site.file
    source = path.read_bytes()
    path.write_bytes(site.apply(source))
    try:
        outcome = run(place, modules_for(site), "-x", "--hypothesis-seed=0", limit_s=LIMIT_S)
    finally:
        path.write_bytes(source)
    return {0: "survived", -1: "time"}.get(outcome.code, "killed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--kind", choices=["mutants", "guards"], default="mutants")
    parser.add_argument("--only", default="", help="a folder or file")
    parser.add_argument("--list", action="store_true", help="list the sites, run nothing")
    asked = parser.parse_args()
    every = [
        site
        for file in sorted(path for of in FOLDERS for path in (ROOT / of).glob("**/*.py"))
        if (name := file.relative_to(ROOT).as_posix()).startswith(asked.only)
        for site in sites(asked.kind, name, file.read_bytes())
    ]
    taken = random.Random(asked.seed).sample(every, min(asked.count, len(every)))
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="flhe-mutants-") as folder:
        place = Path(folder).resolve()
        if not asked.list:
            copy_to(place)
        for site in track(taken, description=asked.kind, disable=asked.list):
            outcome = "listed" if asked.list else verdict(place, site)
            counts[outcome] += 1
            if outcome in ("listed", "survived"):
                diff = site.diff((ROOT / site.file).read_bytes())
                print(f"{site.file}:{site.line}: {diff}")
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
