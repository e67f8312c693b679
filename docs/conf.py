"""Sphinx's settings for the site of documents: see CONTRIBUTING.md."""

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

project = "flhe"
author = "the authors of flhe"
extensions = ["myst_parser"]
exclude_patterns = ["results/*.md"]  # results.md has their tables
html_theme = "furo"
html_title = "flhe"
smartquotes = html_use_index = html_domain_indices = False
html_show_copyright = html_show_sphinx = html_copy_source = html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["wide.css"]
myst_heading_anchors = 4

GENERATED = {
    "Refusals": "refusals",
    "File formats": "file-formats",
    "Node config": "node-config",
    "Run config": "run-config",
    "Command line": "cli",
}
"""Pages that are not in the repository. A text names one ("the site's page *Refusals*"); here it is a
link."""

MERMAID = re.compile(r"```mermaid\n(.*?)```", re.DOTALL)


def _for_the_site(_app: Any, page: str, source: list[str]) -> None:
    """Make the README the front page, and draw arrows as a table: no script comes from elsewhere."""
    if page == "index":
        readme = (HERE.parent / "README.md").read_text(encoding="utf-8")
        readme = readme.replace("](docs/index.md)", "](#documentation-by-question)")
        readme = re.sub(
            r"\]\((CHANGELOG|CONTRIBUTING)", lambda m: f"](reference/{m[1].lower()}", readme
        )
        readme = readme.replace("](examples/README.md", "](reference/examples/index.md")
        contents = (HERE / "contents.txt").read_text(encoding="utf-8")
        questions = f"\n#{source[0]}\n{contents}\n## Try it"
        source[0] = readme.replace("](docs/", "](").replace("\n## Try it", questions, 1)
    source[0] = re.sub(r", \[Markdown\]\(results/[^)]*\)", "", source[0])  # the same, as text
    source[0] = re.sub(r"\]\(((?:\.\./)*)\.\./README\.md", r"](\1index.md", source[0])
    source[0] = re.sub(
        r"\]\(((?:\.\./)*)\.\./examples/(?:([a-z-]+)/)?README\.md",
        lambda m: f"]({m[1]}reference/examples/{m[2] or 'index'}.md",
        source[0],
    )
    source[0] = source[0].replace(" (`CONTRIBUTING.md` says how to build the site)", "")
    up = "../" * page.count("/")
    source[0] = re.sub(
        r"(?<=site's page )\*([\w ]+)\*",
        lambda m: f"[{m[1]}]({up}reference/{GENERATED[m[1]]}.md)",
        source[0],
    )
    source[0] = MERMAID.sub(_table, source[0])


def _table(found: re.Match[str]) -> str:
    arrows: dict[str, list[str]] = {}
    for start, end in re.findall(r"(\w+) --> (\w+)", found[1]):
        arrows.setdefault(start, []).append(end)
    rows = [f"| `{a}` | {', '.join(f'`{b}`' for b in ends)} |" for a, ends in arrows.items()]
    return "\n".join(["| room | imports |", "|---|---|", *rows, ""])


def _generate(_app: Any, _config: Any) -> None:
    from generate_reference import write

    write(HERE / "reference")


def setup(app: Any) -> dict[str, bool]:
    """Generate the reference before Sphinx looks for pages."""
    app.connect("config-inited", _generate)
    app.connect("source-read", _for_the_site)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
