"""Mutants: the library with one thing wrong, or one guard gone. Tests should fail.

`python tests/mutate.py --count 120 --seed 21 --kind mutants|guards [--only flhe/keys] [--json FILE]`
works on a copy of the project. First it runs the tests once, and keeps which of them reach which line
and how long each takes. Then those that reach a mutant's line are run on it, of the folder that mirrors
the file's and of SHARED: the module of the same name first, then the quick ones, to the first that
fails. The same seed and sources give the same sites and the same examples of hypothesis. With FILE,
what was stopped goes on.

Survivors are listed for a person to judge: some change nothing that anybody could notice.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.progress import track

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.guards import copy_to  # noqa: E402
from tests.reached import RECORD, SELECT, kept_as  # noqa: E402
from tests.sites import Site, sites  # noqa: E402

ROOMS = ["keys", "sums", "node", "training", "mods", "schemes", "coding"]
FOLDERS = [*(f"flhe/{room}" for room in ROOMS), "strategies"]
SHARED = [
    f"tests/{name}.py" for name in ("test_laws", "test_codec_laws", "strategies/test_round_vectors")
]
BUSY_S = 40.0
"""How long tests may keep a core busy for one mutant: the slowest are left out."""
WAIT_S = 180.0
"""How long they may take beside thirty times that: a mutant may make the library hang."""


class Copy:
    """A copy of the project that mutants are made in.

    Parameters
    ----------
    place : Path
        An empty folder.
    kept : Path
        The folder of what is known of the tests.
    """

    def __init__(self, place: Path, kept: Path) -> None:
        self.place, self.kept = place, kept
        self.parts: dict[str, Any] = {}
        copy_to(place)

    def pytest(self, *tests: str, **told: object) -> subprocess.Popen[bytes]:
        """Start it in the copy, with environment variables."""
        env = {"PYTHONPYCACHEPREFIX": str(self.kept / "pyc"), **os.environ}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        plugins = ["no:cacheprovider", "tests.reached"]
        options = ["-q", f"--basetemp={self.place / 'tmp'}", *(f"-p{name}" for name in plugins)]
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=self.place,
            env=env | {name: str(value) for name, value in told.items()},
            stdout=(self.place / "said.log").open("wb"),
            stderr=subprocess.STDOUT,
        )

    def reached(self, part: str) -> dict[str, Any]:
        """What the tests of a folder, or module, reach: module by module."""
        if part in self.parts:
            return self.parts[part]
        path = self.place / part
        modules = [
            file.relative_to(self.place).as_posix()
            for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])
        ]
        files = {module: self.kept / kept_as(module) for module in modules}
        if missing := [module for module, file in files.items() if not file.exists()]:
            print(f"{part}: which test reaches what", flush=True)
            self.pytest(*missing, **{RECORD: self.kept}).wait()
        found = self.parts[part] = {}
        for module, file in files.items():
            if file.exists():  # not where all tests are sweeps
                found[module] = json.loads(file.read_text(encoding="utf-8"))
                if failed := found[module]["failed"]:
                    print(f"{module}: not used, as they fail without a mutant: {failed}")
        return found

    def tests_of(self, site: Site) -> dict[str, float]:
        """Seconds of each test that is to be tried, in order."""
        chosen: dict[str, dict[str, float]] = {}
        for part in (mirror(site), *SHARED):
            for module, known in self.reached(part).items():
                lines = known["lines"].get(site.file, {})
                at = map(str, site.lines) if site.lines else lines
                reaching = {known["names"][test] for line in at for test in lines.get(line, ())}
                for test, seconds in known["seconds"].items():
                    if test in reaching or module in reaching:
                        chosen.setdefault(module, {})[test] = seconds
        same = f"test_{Path(site.file).name}"
        order = sorted(chosen, key=lambda of: (Path(of).name != same, sum(chosen[of].values())))
        left, tests = BUSY_S, {}
        for module in order:
            for test, seconds in sorted(chosen[module].items(), key=lambda one: one[1]):
                if (left := left - seconds) > 0:
                    tests[test] = seconds
        return tests

    def tried(self, tests: dict[str, float]) -> str | None:
        """The first test that fails, "" if none does, None at the time limit."""
        (self.place / "chosen.json").write_text(json.dumps(list(tests)), encoding="utf-8")
        modules = dict.fromkeys(test.split("::")[0] for test in tests)
        running = self.pytest("-x", *modules, **{SELECT: self.place / "chosen.json"})
        try:
            if not running.wait(WAIT_S + 30 * sum(tests.values())):
                return ""
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
            return None
        said = (self.place / "said.log").read_text(encoding="utf-8", errors="replace")
        failed = [line.split()[1] for line in said.splitlines() if line.startswith("FAILED ")]
        return failed[0] if failed else "on import"

    def judge(self, site: Site) -> dict[str, object]:
        """Whether a test fails with it."""
        tests = self.tests_of(site)
        path = self.place / site.file
        source = path.read_bytes()
        began = time.monotonic()
        path.write_bytes(site.apply(source))
        try:
            by = self.tried(tests) if tests else ""
        finally:
            path.write_bytes(source)
        return {
            "verdict": "time" if by is None else "killed" if by else "survived",
            "tests": len(tests),
            "by": by,
            "seconds": round(time.monotonic() - began, 1),
            "diff": f"{site.file}:{site.line}: {site.diff(source)}",
        }


def mirror(site: Site) -> str:
    """The folder of tests that mirrors that of a site's file."""
    folder = ROOT / "tests" / Path(site.file).parent.as_posix().removeprefix("flhe/")
    while not folder.is_dir():
        folder = folder.parent
    return folder.relative_to(ROOT).as_posix()


def sources_hash(*folders: str) -> str:
    """Hash of all Python files of some folders."""
    files = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def summary(done: list[tuple[Site, dict[str, object]]]) -> None:
    """Survivors, and how many were killed of each folder."""
    for site, outcome in sorted(done, key=lambda one: (one[0].kind, one[0].file, one[0].line)):
        if outcome["verdict"] == "survived":
            print(f"{site.kind[:-1]} {outcome['diff']}  [{outcome['tests']} tests]")
    counts: Counter[tuple[str, str, object]] = Counter()
    for site, outcome in done:
        for folder in (Path(site.file).parent.as_posix(), "all"):
            counts[site.kind, folder, outcome["verdict"]] += 1
    for kind, folder in sorted({(kind, folder) for kind, folder, _ in counts}):
        killed, late, alive = (counts[kind, folder, v] for v in ("killed", "time", "survived"))
        print(f"{kind} {folder}: {killed + late}/{killed + late + alive} killed ({late} by time)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--kind", choices=["mutants", "guards"], default="mutants")
    parser.add_argument("--only", default="", help="a folder or file")
    parser.add_argument("--json", type=Path, help="results, taken up again if they are there")
    parser.add_argument("--list", action="store_true", help="list the sites, run nothing")
    asked = parser.parse_args()
    every = [
        site
        for file in sorted(path for of in FOLDERS for path in (ROOT / of).glob("**/*.py"))
        if (name := file.relative_to(ROOT).as_posix()).startswith(asked.only)
        for site in sites(asked.kind, name, file.read_bytes())
    ]
    taken = random.Random(asked.seed).sample(every, min(asked.count, len(every)))
    taken.sort(key=mirror)
    if asked.list:
        for site in taken:
            print(f"{site.file}:{site.line}: {site.diff((ROOT / site.file).read_bytes())}")
        return 0
    with tempfile.TemporaryDirectory(prefix="flhe-mutants-") as folder:
        library = ["flhe", *FOLDERS]
        kept = Path(f"{asked.json}.reached" if asked.json else folder, sources_hash(*library)[:8])
        kept.mkdir(parents=True, exist_ok=True)
        known = {"sources": sources_hash(*library, "tests"), "results": {}}
        if asked.json and asked.json.exists():
            before = json.loads(asked.json.read_text(encoding="utf-8"))
            if before["sources"] != known["sources"]:
                raise SystemExit(f"{asked.json} is of other sources: take another file")
            known = before
        place = Path(folder, "copy").resolve()
        place.mkdir()
        copy = Copy(place, kept.resolve())
        done = []
        for site in track(taken, description=asked.kind):
            name = f"{site.kind} {site.file} {site.start} {site.end} {site.text}"
            if name not in known["results"]:
                known["results"][name] = copy.judge(site)
                if asked.json:
                    asked.json.write_text(json.dumps(known, indent=1), encoding="utf-8")
            done.append((site, known["results"][name]))
        summary(done)
    return 0


if __name__ == "__main__":
    sys.exit(main())
