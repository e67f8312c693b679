"""Sentences of pages and docstrings, and what a program can say of them.

`python -m tests.prose [FILE ...]` prints words a sentence, by page: median, 90th percentile, longest.
`python -m tests.prose --allow` writes prose_allowed.txt anew: what does not hold to the rules yet.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALLOWED = Path(__file__).with_name("prose_allowed.txt")
LONGEST, NINETIETH = 40, 28
"""Most words of a sentence, and of nine in ten sentences of a page."""
BANNED = re.compile(
    r"\b(told|heard|lacks|by its own lights|comes? to nothing|came to nothing|of nobody"
    r"|slip of the pen|whoever|that is none)\b",
    re.IGNORECASE,
)
OPENINGS = re.compile(r"(Who|Whoever|What|Which|Whatever) (?!.*\?$)")
"""A clause as the subject: name the actor. Questions may begin so, and so may a lead-in or a title."""
LEAD = 6
FIRST = re.compile(r"(Whether|What|Whatever|Who|Whoever|Which|How|Where|When|That|If)\b")
"""A docstring begins with an imperative or a noun phrase, and so with none of these."""
SHORT = re.compile(r"(e\.g|i\.e|etc|al|vs|Sec|Fig|Eq|Def|Thm|no|cf|resp)\.$")


def pages() -> list[Path]:
    """Return the pages that people write: tables of results and the reference are generated."""
    made = {"results.md", "corrections.md", "privacy_results.md", "what_a_server_learns.md"}
    made |= {"what_epsilon_buys.md"}
    found = [*(ROOT / "docs").glob("*.md")]
    for folder in ("tutorial", "how-to", "schemes"):
        found += (ROOT / "docs" / folder).glob("*.md")
    own = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return own + sorted(path for path in found if path.name not in made)


def sources() -> list[Path]:
    rooms = (ROOT / name for name in ("flhe", "strategies", "apps"))
    found = (path for room in rooms for path in room.rglob("*.py"))
    return sorted(path for path in found if "build" not in path.relative_to(ROOT).parts)


def blocks(page: str) -> Iterator[str]:
    """Yield paragraphs, items and cells of a Markdown page, without code, links and marks."""
    page = re.sub(r"<!--.*?-->|^ *```.*?^ *```", "\n", page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", page)
    page = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", page)
    page = re.sub(r"`[^`\n]*`", "code", page)
    page = re.sub(r"^( *)([-*]|\d+\.) ", r"\n\n", page, flags=re.MULTILINE)
    page = re.sub(r"^(#.*)$", r"\n", page, flags=re.MULTILINE)
    for part in re.split(r"\n\s*\n", page):
        lines = part.strip().splitlines()
        if lines and all(line.startswith("|") for line in lines):
            for line in lines:
                yield from re.split(r"(?<!\\)\|", line)
        elif lines:
            yield " ".join(lines)


def sentences(page: str) -> Iterator[str]:
    """Yield sentences of three words or more."""
    for block in blocks(page):
        text = re.sub(r"[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}", "", " ".join(block.split()))
        whole = ""
        for part in re.split(r"(?<=[.!?])(?=\s)|(?<=[.!?][)\"'])(?=\s)", text):
            whole += part
            if not SHORT.search(whole):
                if words(whole) >= 3:
                    yield whole.strip()
                whole = ""
        if words(whole) >= 3:
            yield whole.strip()


def words(sentence: str) -> int:
    return len(re.findall(r"\S*\w\S*", sentence))


def ninetieth(counts: list[int]) -> float:
    return (
        statistics.quantiles(counts, n=10, method="inclusive")[8] if len(counts) > 1 else counts[0]
    )


def faults_of_page(page: str) -> list[str]:
    """Return what a page does against the rules."""
    found = list(sentences(page))
    out = [f"{words(each)} words: {each}" for each in found if words(each) > LONGEST]
    counts = [words(each) for each in found]
    if counts and ninetieth(counts) > NINETIETH:
        out.append(f"one sentence in ten has {ninetieth(counts):.0f} words or more")
    for each in found:
        lead = words(each) > LEAD and OPENINGS.match(each)
        if hit := BANNED.search(each) or lead:
            out.append(f"{hit[0]!r}: {each}")
    return out


def faults_of_source(text: str) -> list[str]:
    """Return the first lines of docstrings that are against the rules."""
    out = []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, kinds) and (doc := ast.get_docstring(node)):
            first = doc.splitlines()[0]
            if FIRST.match(first) or BANNED.search(first) or words(first) > NINETIETH:
                out.append(first)
    return out


def faults_of(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return faults_of_source(text) if path.suffix == ".py" else faults_of_page(text)


def allowed() -> set[str]:
    return set(ALLOWED.read_text(encoding="utf-8").split())


def main(arguments: list[str]) -> None:
    if arguments == ["--allow"]:
        failing = [path for path in [*pages(), *sources()] if faults_of(path)]
        names = [path.relative_to(ROOT).as_posix() for path in failing]
        ALLOWED.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        return
    everything = list[int]()
    print(f"{'page':40} {'sentences':>9} {'median':>6} {'90th':>5} {'longest':>7}")
    for path in map(Path, arguments) if arguments else pages():
        counts = [words(each) for each in sentences(path.read_text(encoding="utf-8"))]
        everything += counts
        _print(path.name, counts)
    _print("all", everything)


def _print(name: str, counts: list[int]) -> None:
    if counts:
        middle = statistics.median(counts)
        print(f"{name:40} {len(counts):9} {middle:6g} {ninetieth(counts):5.0f} {max(counts):7}")


if __name__ == "__main__":
    main(sys.argv[1:])
