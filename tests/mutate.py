"""Mutants: the library with one thing wrong, or one guard gone. Tests should fail.

`python tests/mutate.py --count 120 --seed 21 --kind mutants|guards [--only flhe/keys] [--json FILE]`
works on a copy of the project. First it runs the tests once, and keeps which of them reach which line
and how long each takes. Then those that reach a mutant's line are run on it, of the folder that mirrors
the file's and of SHARED: the module of the same name first, then the quick ones. The same seed and
sources give the same sites and the same examples of hypothesis. With FILE, what was stopped goes on.

Survivors are listed for a person to judge: some change nothing that anybody could notice.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import signal
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
from tests.reached import RECORD, SELECT  # noqa: E402
from tests.sites import Site, sites  # noqa: E402

FOLDERS = ["flhe/keys", "flhe/rounds", "flhe/mods", "flhe/schemes", "flhe/coding", "strategies"]
SHARED = ["tests/test_laws.py", "tests/strategies/test_round_vectors.py"]
BUSY_S = 100.0
"""How long tests may keep a core busy for one mutant: the slowest are left out."""
WAIT_S = 120.0
"""How long they may take beside ten times that, as a mutant may make the library hang."""


class Copy:
    """A copy of the project that mutants are made in.

    Parameters
    ----------
    place : Path
        An empty folder.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.parts: dict[str, Any] = {}
        copy_to(place)

    def pytest(
        self, tests: list[str], limit_s: float | None, **told: str
    ) -> tuple[int | None, str]:
        """Exit code, None at the time limit, and the last lines of what pytest said."""
        env = {**os.environ, "PYTHONPYCACHEPREFIX": str(self.place / ".pyc"), **told}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        options = ["-q", "-p", "no:cacheprovider", "-p", "tests.reached", "--tb=line", "-rfE"]
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=self.place,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as running:
            try:
                said = running.communicate(timeout=limit_s)[0]
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                return None, "time"
        return running.returncode, said[-2000:]

    def reached(self, part: str, kept: Path) -> dict[str, Any]:
        """What the tests of a folder, or module, reach."""
        if part not in self.parts:
            if not kept.exists():
                print(f"{part}: which test reaches what", flush=True)
                self.pytest([part], None, **{RECORD: str(kept)})
            self.parts[part] = json.loads(kept.read_text(encoding="utf-8"))
            if self.parts[part]["failed"]:
                print(
                    f"{part}: not used, as they fail without a mutant: {self.parts[part]['failed']}"
                )
        return self.parts[part]

    def tests_of(self, site: Site, kept: Path) -> dict[str, float]:
        """Seconds of each test that is to be tried, in order."""
        mirror = ROOT / "tests" / Path(site.file).parent.as_posix().removeprefix("flhe/")
        while not mirror.is_dir():
            mirror = mirror.parent
        chosen: dict[str, dict[str, float]] = {}
        for part in (mirror.relative_to(ROOT).as_posix(), *SHARED):
            known = self.reached(part, kept / f"{part.replace('/', '.')}.json")
            lines = known["lines"].get(site.file, {})
            at = map(str, site.lines) if site.lines else lines
            reaching = {known["names"][test] for line in at for test in lines.get(line, ())}
            for test, seconds in known["seconds"].items():
                module = test.split("::")[0]
                if test in reaching or module in reaching:
                    chosen.setdefault(module, {})[test] = seconds
        same = f"test_{Path(site.file).name}"
        order = sorted(chosen, key=lambda of: (Path(of).name != same, sum(chosen[of].values())))
        left, tests = BUSY_S, {}
        for test, seconds in (
            t for of in order for t in sorted(chosen[of].items(), key=lambda t: t[1])
        ):
            left -= seconds
            if left > 0:
                tests[test] = seconds
        return tests

    def judge(self, site: Site, kept: Path) -> dict[str, object]:
        """Whether a test fails with it."""
        tests = self.tests_of(site, kept)
        path = self.place / site.file
        source, stat = path.read_bytes(), path.stat()
        (self.place / "chosen.json").write_text(json.dumps(list(tests)), encoding="utf-8")
        began = time.monotonic()
        path.write_bytes(site.apply(source))
        try:
            code, said = self.pytest(
                ["-x", *dict.fromkeys(test.split("::")[0] for test in tests)],
                WAIT_S + 10 * sum(tests.values()),
                **{SELECT: str(self.place / "chosen.json")},
            )
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        by = re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
        verdict = "time" if code is None else "killed" if code else "survived"
        return {
            "verdict": verdict if tests else "survived",
            "tests": len(tests),
            "by": by[0] if by else said[-200:] if code else "",
            "seconds": round(time.monotonic() - began, 1),
            "diff": f"{site.file}:{site.line}: {site.diff(source)}",
        }


def sources_hash(folders: list[str]) -> str:
    """Hash of whatever a result depends on."""
    files = sorted(
        p for folder in ("flhe", *folders, "tests") for p in (ROOT / folder).rglob("*.py")
    )
    return hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()


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
    """Try what is asked for."""
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
    if asked.list:
        for site in taken:
            print(f"{site.file}:{site.line}: {site.diff((ROOT / site.file).read_bytes())}")
        return 0
    with tempfile.TemporaryDirectory(prefix="flhe-mutants-") as folder:
        kept = Path(f"{asked.json}.reached") if asked.json else Path(folder, "reached")
        kept.mkdir(parents=True, exist_ok=True)
        known = {"sources": sources_hash(FOLDERS), "results": {}}
        if asked.json and asked.json.exists():
            before = json.loads(asked.json.read_text(encoding="utf-8"))
            if before["sources"] != known["sources"]:
                raise SystemExit(f"{asked.json} is of other sources: take another file")
            known = before
        place = Path(folder, "copy").resolve()
        place.mkdir()
        copy = Copy(place)
        done = []
        for site in track(taken, description=asked.kind):
            name = f"{site.kind} {site.file} {site.start} {site.end} {site.text}"
            if name not in known["results"]:
                known["results"][name] = copy.judge(site, kept)
                if asked.json:
                    asked.json.write_text(json.dumps(known, indent=1), encoding="utf-8")
            done.append((site, known["results"][name]))
        summary(done)
    return 0


if __name__ == "__main__":
    sys.exit(main())
