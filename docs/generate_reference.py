"""Write the reference pages of the site from the code: API, command line, configs and refusals.

The API comes from the source, by `ast`, so nothing heavy is imported for it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
API = {
    "flhe.strategies": (
        *("flhe.strategies", "flhe.strategies.options", "flhe.strategies.report"),
        "flhe.strategies.tensorboard",
    ),
    "flhe.mods": ("flhe.mods", "flhe.mods.records"),
    "flhe.analytics": ("flhe.analytics", "flhe.analytics.schema", "flhe.analytics.survival"),
    "flhe.dpsgd": ("flhe.dpsgd",),
    "flhe.testing": ("flhe.testing",),
    "flhe.training": ("flhe.training.optimizer", "flhe.training.schedule"),
    "flhe.node": ("flhe.node.checkpoint",),
    "flhe.coding": ("flhe.coding",),
    "flhe.schemes": ("flhe.schemes",),
    "flhe.wire": ("flhe.wire.derive", "flhe.wire.record"),
    "flhe.math": ("flhe.math.ring",),
    "flhe.errors": ("flhe.errors",),
}
"""Page -> modules and packages whose public names are on it."""

Definition = ast.ClassDef | ast.FunctionDef


@dataclass(frozen=True)
class Name:
    """A public name: where it is imported from, where it is defined, and how."""

    module: str
    node: Definition


def path_of(module: str) -> Path:
    """Return the file of a module of the library."""
    parts = module.split(".")
    base = ROOT / "strategies" if parts[:2] == ["flhe", "strategies"] else ROOT / "flhe"
    found = base.joinpath(*parts[2 if base.name == "strategies" else 1 :])
    return found / "__init__.py" if found.is_dir() else found.with_suffix(".py")


def _defined(module: str) -> dict[str, Definition]:
    tree = ast.parse(path_of(module).read_text(encoding="utf-8"))
    return {n.name: n for n in tree.body if isinstance(n, Definition)}


def _exported(module: str) -> dict[str, str]:
    """Names of `__all__`, and the modules that they come from."""
    tree = ast.parse(path_of(module).read_text(encoding="utf-8"))
    listed = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    names = ast.literal_eval(listed[0]) if listed else []
    origins = {
        alias.name: node.module or ""
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return {name: origins[name] for name in names}


def public(module: str) -> Iterator[Name]:
    """Yield the names in `__all__` of a package; without one, what its modules define."""
    file = path_of(module)
    if exported := _exported(module):
        for name, origin in exported.items():
            yield Name(module, _defined(origin)[name])
    elif file.name == "__init__.py":
        for each in sorted(file.parent.iterdir()):
            inner = each / "__init__.py" if each.is_dir() else each
            if inner.suffix == ".py" and inner.is_file() and not each.name.startswith("_"):
                yield from public(f"{module}.{each.stem}")
    elif not file.stem.endswith("kernels"):
        for name, node in _defined(module).items():
            if not name.startswith("_"):
                yield Name(module, node)


# --- text ---


def _markdown(doc: str | None) -> str:
    """Turn a docstring into Markdown: sections of NumPy's style become lists."""
    lines = inspect.cleandoc(doc or "").splitlines()
    out, section = list[str](), ""
    for at, line in enumerate(lines):
        if line and set(line) == {"-"} and at and lines[at - 1].strip():
            section = out.pop()
            out += [f"**{section}**", ""]
        elif section and re.match(r"[\w*, ]+( : |$)", line):
            name, _, kind = line.partition(" : ")
            out.append(f"- `{name}`: {kind}." if kind else f"- `{name}`:")
        else:
            out.append(line)
    text = "\n".join(out)
    return re.sub(r"(?m)^((?!    ).*?)\]\(", r"\1] (", text)


def _signature(node: Definition) -> str:
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in [*node.bases, *node.keywords])
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    args, result = node.args, f" -> {ast.unparse(node.returns)}" if node.returns else ""
    whole = f"def {node.name}({ast.unparse(args)}){result}"
    if len(whole) <= 88:
        return whole
    parts = list[str]()
    places = [*args.posonlyargs, *args.args]
    values = [None] * (len(places) - len(args.defaults)) + list(args.defaults)
    given = [*zip(places, values, strict=True)]
    named = [*zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    for each, value in given:
        parts.append(ast.unparse(each) + (f" = {ast.unparse(value)}" if value else ""))
    if args.vararg or named:
        parts.append("*" + (ast.unparse(args.vararg) if args.vararg else ""))
    for each, value in named:
        parts.append(ast.unparse(each) + (f" = {ast.unparse(value)}" if value else ""))
    if args.kwarg:
        parts.append(f"**{ast.unparse(args.kwarg)}")
    return f"def {node.name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


def _fields(node: ast.ClassDef) -> str:
    """List how a class is made: `__init__`, or the fields of a dataclass."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            return "\n" + textwrap.indent(_signature(each), "    ")
    rows = [
        f"    {ast.unparse(each)}"
        for each in node.body
        if isinstance(each, ast.AnnAssign) and not ast.unparse(each.target).startswith("_")
    ]
    return "".join(f"\n{row.splitlines()[0]}" for row in rows)


def entry(name: Name, level: int = 2) -> str:
    """Return the Markdown of one name: signature, docstring, and the methods of a class."""
    node = name.node
    code = _signature(node) + (_fields(node) if isinstance(node, ast.ClassDef) else "")
    out = [
        f"{'#' * level} {node.name}",
        f"```python\n{code}\n```",
        _markdown(ast.get_docstring(node)),
    ]
    if isinstance(node, ast.ClassDef):
        for each in node.body:
            if isinstance(each, ast.FunctionDef) and not each.name.startswith("_"):
                doc = ast.get_docstring(each)
                out.append(f"{'#' * (level + 1)} {node.name}.{each.name}")
                out.append(f"```python\n{_signature(each)}\n```\n\n{_markdown(doc)}")
    return "\n\n".join(filter(None, out))


def api_page(page: str) -> str:
    """Return the page of the API under this title."""
    out = [f"# {page}"]
    if len(API[page]) == 1:
        tree = ast.parse(path_of(page).read_text(encoding="utf-8"))
        out.append(_markdown(ast.get_docstring(tree)))
    for module in API[page]:
        before = page
        for name in public(module):
            if name.module != before:
                out.append(f"## {name.module}")
                before = name.module
            out.append(entry(name, 2 if name.module == page else 3))
    return "\n\n".join(out) + "\n"


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _table(*rows: tuple[object, ...]) -> str:
    head, *rest = rows
    lines = [head, tuple("---" for _ in head), *rest]
    return "\n".join("| " + " | ".join(_cell(each) for each in row) + " |" for row in lines)


CONVENTIONS = """`flhe COMMAND --help` prints the same as this page.

- **Results** go to standard output. Progress, notes and errors go to standard error.
- `--json` prints one JSON document to standard output, and no text.
- `--quiet` prints errors only; with `--json`, the document and errors.
- **Colours and bars** need a terminal. `NO_COLOR=1`, `--no-color` and `TERM=dumb` switch colours off;
  `FORCE_COLOR=1` switches them on.
- **Tables** that are wider than the terminal become lists. In a file or a pipe no line is wrapped.
- **Completion**: run `flhe --install-completion` once, and open a new shell.
  `flhe --show-completion` prints the script.
- **Tracebacks**: an error is one line. `FLHE_DEBUG=1` shows its origin."""


def cli_page() -> str:
    """Return every command, with its arguments and options, and what all commands share."""
    import click
    import typer

    from flhe.answer import EXIT_CODES
    from flhe.cli import app

    out = ["# Command line", CONVENTIONS]
    out += ["## Exit codes", _table(("code", "meaning"), *EXIT_CODES.items())]

    def add(command: click.Command, path: str) -> None:
        context = click.Context(command, info_name=path)
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                if inner is not None and not inner.hidden:
                    add(inner, f"{path} {name}")
            return
        out.append(f"### {path}")
        out.append(_markdown(command.help))
        rows = [
            (
                "`" + ", ".join(each.opts) + "`",
                each.type.name,
                each.default
                if isinstance(each.default, (str, int, float)) and each.default
                else "",
                getattr(each, "help", "") or "",
            )
            for each in command.get_params(context)
            if not getattr(each, "hidden", False)
            and not {"--help", "--json", "--quiet"} & {*each.opts}
        ]
        if rows:
            out.append(_table(("option", "type", "default", "meaning"), *rows))
        lines = str(command.epilog or "").replace("\n\n", "\n").partition("\n")[2]
        out.append("```sh\n" + lines.replace("$ ", "") + "\n```")

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for panel in dict.fromkeys(each.rich_help_panel for each in commands.values()):
        out.append(f"## {panel}")
        for name, command in commands.items():
            if command.rich_help_panel == panel:
                add(command, f"flhe {name}")
    return "\n\n".join(out) + "\n"


KINDS = {
    "bool": "true or false",
    "int": "an integer, 0 or more",
    "Path": "a path",
    "Path | None": "a path",
    "Trust": "pinned or first-use",
}
"""How a person writes a value of a field of `Policy`; all others are names, separated by commas."""


def node_page() -> str:
    """Return every setting of a node's config: type, default, and what a roster may say."""
    from flhe.keys.roster import limits
    from flhe.node import policy
    from flhe.node.settings import OWN

    known, rows = limits.known(), list[tuple[object, ...]]()
    config = {each.name: each for each in dataclasses.fields(policy.Policy)}
    for key in sorted(policy.settings()):
        name = key.removeprefix("flhe-")
        if limit := known.get(name):
            values = (_written(each) for each in (limit.default, limit.simulated))
            rows.append((f"`{key}`", limit.needs, *values, "yes", limit.help))
            continue
        field = config.get(name.replace("-", "_"))
        if field is None or name == "roster":
            rows.append(
                (f"`{key}`", "a path" if name == "roster" else "text", "", "", "no", OWN[name])
            )
            continue
        kind = KINDS.get(str(field.type), "names, separated by commas")
        rows.append((f"`{key}`", kind, _written(field.default), "", "no", OWN[name]))
    head = ("key", "value", "default", "in a simulation", "roster may set it", "meaning")
    return (
        "# Node config\n\nThe server cannot change these settings. "
        "`flhe site init` writes them, with their meaning, into a site's own file. "
        "[Deploy](../deploy.md) says where. "
        "Of a roster's value and the node's own, the stricter holds.\n\n"
        + _table(head, *rows)
        + "\n"
    )


def _written(value: object) -> str:
    """Return a default as a node config has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "" if value is None or value is dataclasses.MISSING else str(value)


def run_page() -> str:
    """Return every key of the run config of flhe's own app."""
    from flhe_app.option import about, key_of
    from flhe_app.settings import Settings

    rows = [
        (f"`{key_of(each.name)}`", each.type, f"`{each.default!r}`", about(each).help)
        for each in dataclasses.fields(Settings)
    ]
    return (
        "# Run config\n\nThese are the keys of flhe's own app. `flhe run` has them as options; "
        "`flwr run apps --run-config` takes them as they are here.\n\n"
        + _table(("key", "type", "default", "meaning"), *rows)
        + "\n"
    )


def refusals_page() -> str:
    """Return every code that a node answers with, and its meaning."""
    from flhe.wire import codes

    found = [refusal for code in range(1000, 1100) if (refusal := codes.find(code))]
    rows = [(each.code, f"`{each.slug}`", each.meaning) for each in found]
    return (
        "# Refusals\n\nA node answers with one of these codes. The server's log prints the meaning. "
        "[Read a refusal](../how-to/read-a-refusal.md) says what to do.\n\n"
        + _table(("code", "slug", "meaning"), *rows)
        + "\n"
    )


PLACES = {
    "flhe.keys": "Keys and rosters: files of a site, and messages of the key agreement",
    "flhe.node": "A site's state directory",
    "flhe.schemes": "Keys and ciphertexts of the schemes",
    "flhe.sums": "Messages of a secure sum",
    "flhe.training": "Messages and files of training",
    "flhe.mods": "What a site answers",
    "flhe.analytics": "Statistics",
    "flhe.coding": "What codecs keep and send",
    "flhe.strategies": "The server's state directory",
    "flhe": "Others",
}
"""Room -> heading of its records."""


def records() -> dict[str, list[type]]:
    """Return the classes of records that the library defines, by room."""
    import importlib

    found: dict[str, list[type]] = {}
    for top, package in ((ROOT / "flhe", "flhe"), (ROOT / "strategies", "flhe.strategies")):
        for file in sorted(top.rglob("*.py")):
            if "FORM = " not in file.read_text(encoding="utf-8") or file.name == "record.py":
                continue
            parts = file.relative_to(top).with_suffix("").parts
            module = importlib.import_module(".".join((package, *parts)).removesuffix(".__init__"))
            room = next(room for room in PLACES if f"{module.__name__}.".startswith(f"{room}."))
            found.setdefault(room, []).extend(
                each
                for each in vars(module).values()
                if isinstance(each, type)
                and each.__module__ == module.__name__
                and "FORM" in vars(each)
            )
    return {room: found[room] for room in PLACES if found.get(room)}


def _writers(record: type) -> list[str]:
    """Return the modules of the library that make a record: its own, and those that import it."""
    name = record.__name__
    made = re.compile(rf"(?<!class )\b{name}\(")
    known = re.compile(rf"from {re.escape(record.__module__)} import (?:\([^)]*|.*)\b{name}\b")
    found = []
    for top in ("flhe", "strategies"):
        for file in sorted((ROOT / top).rglob("*.py")):
            module = ".".join(("flhe", *file.relative_to(ROOT).with_suffix("").parts))
            module, text = module.replace("flhe.flhe", "flhe"), file.read_text(encoding="utf-8")
            if made.search(text) and (module == record.__module__ or known.search(text)):
                found.append(module)
    return found


def formats_page() -> str:
    """Return every record: its encoding, the modules that make it, and its fields with their bounds."""
    from flhe.wire import record

    out = [
        "# File formats and wire records",
        "A record is canonical CBOR: a map of named fields, or a row of values without names. "
        "A map with a kind and a version starts with `v` and `kind`. Decoding refuses all but these "
        "fields within these bounds. [The protocol](../protocol.md) "
        "says which message has which record.",
    ]
    for room, classes in records().items():
        out.append(f"## {PLACES[room]}")
        for each in classes:
            form: Any = vars(each)["FORM"]
            facts = [f"a {'row' if form.row else 'map'} of at most {form.most:,} bytes"]
            facts += [f"kind `{form.kind}`"] * bool(form.kind)
            facts += [f"version {form.version}"] * bool(form.version)
            out.append(f"### {each.__name__}")
            out.append(f"`{each.__module__}`: {form.what}; {', '.join(facts)}.")
            if writers := _writers(each):
                out.append("Made in " + ", ".join(f"`{module}`" for module in writers) + ".")
            out.append(
                _markdown(
                    each.__doc__ if not (each.__doc__ or "").startswith(f"{each.__name__}(") else ""
                )
            )
            specs = record._specs_of(each).items()
            rows = [(f"`{name}`", spec.needs) for name, spec in specs]
            if rows:
                out.append(_table(("field", "value"), *rows))
    return "\n\n".join(filter(None, out)) + "\n"


def pages() -> dict[str, str]:
    """Return every generated page, by its path below `docs/reference`."""
    index = "# API\n\n```{toctree}\n" + "\n".join(API) + "\n```\n"
    return {
        "api/index.md": index,
        **{f"api/{page}.md": api_page(page) for page in API},
        "cli.md": cli_page(),
        "node-config.md": node_page(),
        "run-config.md": run_page(),
        "refusals.md": refusals_page(),
        "file-formats.md": formats_page(),
        **dict(_examples()),
        **{f"{name.lower()}.md": _copied(name) for name in ("CHANGELOG", "CONTRIBUTING")},
    }


def _copied(name: str) -> str:
    """Return a page of the repository, with links that hold in the reference."""
    text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
    return text.replace("](docs/", "](../").replace("](examples/README.md", "](examples/index.md")


def _examples() -> Iterator[tuple[str, str]]:
    """Yield the pages of the examples, each its README, and their index."""
    apps = sorted(path.parent.name for path in (ROOT / "examples").glob("*/README.md"))
    for name in ("", *apps):
        text = (ROOT / "examples" / name / "README.md").read_text(encoding="utf-8")
        text = re.sub(r"\]\((?:\.\./)+docs/", "](../../", text)
        text = re.sub(r"\]\((?:\.\./)?([a-z-]+)/README\.md", r"](\1.md", text)
        text = text.replace("](../README.md", "](index.md")
        if not name:
            text += "\n```{toctree}\n:hidden:\n\n" + "\n".join(apps) + "\n```\n"
        yield f"examples/{name or 'index'}.md", text


def write(folder: Path, **_: Any) -> None:
    """Write all pages; one that has not changed keeps its time."""
    for name, text in pages().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
