"""`flhe run [SCHEME]`: a command with the options of settings, and of the named scheme.

A TOML file may hold the same settings:

    scheme = "sash unmask=clients"
    task = "fcn-digits"
    top-k = 0.1
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
from typer.core import TyperCommand

from flhe.errors import ConfigError
from flhe.schemes import PLAIN
from flhe_app.option import GROUPS, about, flag_of, key_of, option
from flhe_app.settings import DIR, FILE, Settings, typed

OWN = "scheme_"
"""Prefix of a scheme's own parameters among the command's."""

NAMED = "flhe.scheme"
"""Key of the named scheme in a context."""

METAVARS = {int: "N", float: "X"}
_files, _options = (partial(option, group=group) for group in GROUPS[-2:])


@dataclass(frozen=True, slots=True)
class How:
    """Options of the command that are no settings."""

    report_path: str = _files(
        "", "Append a JSON line after each round: time of each phase.", flag="--report", extra=FILE
    )
    resumed: str = _files(
        "", "Go on with the run in this directory; --rounds may grow.", flag="--resume", extra=DIR
    )
    config: str = _files("", "TOML file of settings; options here override them.", extra=FILE)
    list_settings: bool = _options(
        False, "List all settings, and do nothing else.", flag="--settings"
    )


class RunCommand(TyperCommand):
    """Command that takes a scheme's name first, and then that scheme's own options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rich_markup_mode = None  # one line an option: help fits one screen

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remove the scheme's name from the arguments; UsageError with the possible names."""
        if args and not args[0].startswith("-"):
            names = (*_schemes().names(), PLAIN)
            if args[0] not in names:
                raise click.UsageError(f"no scheme {args[0]!r}; there are {', '.join(names)}", ctx)
            ctx.meta[NAMED], *args = args
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the scheme's own options, then those of every run."""
        name = ctx.meta.get(NAMED, PLAIN)
        own = () if name == PLAIN else _own_options(name)
        return [*own, *_settings(), *super().get_params(ctx)]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Include the scheme, or a placeholder for its name."""
        return [ctx.meta.get(NAMED, "[SCHEME]"), *super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in groups."""
        groups: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
        group_of = {field.name: about(field).group for field in (*fields(Settings), *fields(How))}
        for parameter in self.get_params(ctx):
            name = str(parameter.name)
            own = f"Options of {ctx.meta[NAMED]}" if name.startswith(OWN) else "Options"
            if record := parameter.get_help_record(ctx):
                groups.setdefault(group_of.get(name, own), []).append(record)
        for group in sorted(groups, key=lambda group: not group.startswith("Options of")):
            with formatter.section(group):
                formatter.write_dl(groups[group])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of schemes, and examples."""
        if NAMED not in ctx.meta:
            with formatter.section("Schemes, each with options of its own (flhe run NAME --help)"):
                formatter.write_text(", ".join((*_schemes().names(), PLAIN)))
        title, *lines = (self.epilog or "").split("\n\n")
        with formatter.section(title.rstrip(":")):
            formatter.write("".join(f"  {line}\n" for line in lines))


def scheme_text(ctx: click.Context, given: dict[str, Any]) -> str | None:
    """Return the named scheme and its options as text for settings, or None."""
    name = ctx.meta.get(NAMED)
    own = {key.removeprefix(OWN): given.pop(key) for key in list(given) if key.startswith(OWN)}
    if name is None:
        return None
    said = {key_of(key): value for key, value in own.items() if value is not None}
    texts = (f"{k}={str(v).lower() if type(v) is bool else v}" for k, v in said.items())
    return " ".join((name, *texts))


def _schemes() -> Any:
    from flhe.schemes.registry import SCHEMES

    return SCHEMES


def _own_options(name: str) -> Iterator[click.Parameter]:
    """Yield an option for each parameter of a scheme, from its class and docstring."""
    kind = _schemes().named(name)
    hints = get_type_hints(kind)
    told = _described("\n".join(base.__doc__ or "" for base in kind.__mro__))
    for field in fields(kind):
        hint, key = hints[field.name], key_of(field.name)
        choice = get_origin(hint) is Literal
        yield click.Option(
            [f"--{key}/--no-{key}" if hint is bool else f"--{key}", f"{OWN}{field.name}"],
            type=click.Choice([str(one) for one in get_args(hint)]) if choice else hint,
            default=None,
            help=f"{told.get(field.name, field.name)}  [default: {field.default}]",
        )


def _settings() -> Iterator[click.Parameter]:
    """Yield an option for each setting of the command line, and each field of How."""
    for field in (*fields(Settings), *fields(How)):
        if (flag := flag_of(field)) is not None:
            said, default = about(field), field.default
            shown = f"  [default: {default}]" if default not in ("", False) else ""
            yield click.Option(
                [flag, field.name],
                type=type(default),
                is_flag=type(default) is bool,
                default=default,
                help=said.help + shown,
                hidden=not said.group,
                **{"metavar": METAVARS.get(type(default)), **said.extra},
            )


def _described(doc: str) -> dict[str, str]:
    """Return the first sentence of each parameter in a NumPy docstring."""
    parameters = re.split(r"^ *(\w+) : .*\n", doc.partition("Parameters\n")[2], flags=re.MULTILINE)
    described = zip(parameters[1::2], parameters[2::2], strict=True)
    return {
        name: re.split(r"[.;] ", " ".join(text.split()))[0].rstrip(".") + "."
        for name, text in described
    }


def from_file(path: str) -> dict[str, Any]:
    """Return the settings of a TOML file, by the names of their fields; empty without a file.

    Raises ConfigError: no such file, invalid TOML, an unknown setting, or one of another type.
    """
    if not path:
        return {}
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"--config {path}: {error}") from None
    known = {key_of(f.name): f for f in fields(Settings) if not about(f).internal}
    if unknown := [key for key in found if key not in known]:
        raise ConfigError(
            f"--config {path}: {unknown[0]} is no setting; `flhe run --settings` lists them"
        )
    return {known[key].name: typed(key, known[key].default, found[key]) for key in found}
