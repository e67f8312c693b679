"""`flhe ...` on the command line.

Commands import heavy packages when they run: `flhe --help` loads neither flwr, torch nor numba. An
error of flhe becomes one line on standard error and exit code 1. The code is 2 if `keygen` refuses
its options, as for an unreadable command line.
"""

from __future__ import annotations

from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Annotated

import typer

from flhe.command_group import ENTRY_POINT, Commands, OneLineErrors
from flhe.errors import ConfigError
from flhe.json_option import JsonFile, console, write_json
from flhe.provision.key_commands import keys as key_commands
from flhe.provision.roster_commands import roster as roster_commands

app = typer.Typer(
    cls=OneLineErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Homomorphic encryption and secure aggregation for Flower federations.",
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"flhe {version('flhe')}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Homomorphic encryption and secure aggregation for Flower federations."""


@app.command("open")
def open_model(
    sealed: Annotated[Path, typer.Argument(help="The sealed model that a run wrote.")],
    key: Annotated[
        Path, typer.Option("--key", help="A member's state directory, or one above several.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Output file: .npz (default) or .pt."),
    ] = None,
) -> None:
    """Open a sealed model with a key of its group."""
    from flhe.node.checkpoint import open_checkpoint, write_model

    out = output or sealed.with_suffix(".npz")
    model = open_checkpoint(sealed, key)
    write_model(model, out)
    count = model.layout.floats + model.layout.integers
    typer.echo(f"{out}: {len(model.layout.entries)} arrays, {count:,} values, round {model.round}")


@app.command()
def keygen(
    home: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Make a site's identity, in this state directory."),
    ] = None,
    name: Annotated[str, typer.Option(help="The site's name in rosters.")] = "",
    scheme: Annotated[str, typer.Option(help="Deal keys for this scheme.")] = "",
    roster: Annotated[Path | None, typer.Option(metavar="FILE", help="The sites' roster.")] = None,
    roster_hash: Annotated[
        str, typer.Option(metavar="HEX", help="The roster's hash, as sites pin it.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Output: file of the site's request (NAME.site), or directory of dealt keys.",
        ),
    ] = None,
    ring: Annotated[str, typer.Option(help="Ring of the keys; by default the scheme's own.")] = "",
    without: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Leave this site out; repeatable.")
    ] = None,
    show: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Show the public part of a dealt key file."),
    ] = None,
) -> None:
    """Make the identity of a site: `--home DIR --name NAME`.

    Or deal keys to the sites offline, in a federation with a trusted dealer: `--scheme NAME
    --roster FILE --roster-hash HEX --out DIR`.
    """
    from flhe.provision import keygen as dealer

    if home is not None or name:
        if home is None or not name or scheme or roster or show:
            raise ConfigError(
                "an identity takes --home DIR and --name NAME, and --out FILE for another file than "
                "NAME.site; dealt keys take neither --home nor --name"
            )
        from flhe.provision import sites

        typer.echo(sites.enrol(home, name, out))
        return
    if show is not None:
        console().print(dealer.show(show))
        return
    table, steps = dealer.keygen(scheme, roster, roster_hash, out, ring, without or ())
    console().print(table)
    console().print(steps, markup=False, highlight=False, soft_wrap=True)


@app.command("log")
def show_log(
    home: Annotated[Path, typer.Option("--home", metavar="DIR", help="A node's state directory.")],
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=1, help="Newest lines only.")
    ] = 50,
) -> None:
    """Show a node's audit log: the requests that it received and its answers."""
    from flhe.node import audit
    from flhe.node.store import Store
    from flhe.provision.audit_table import audit_table, contracts

    if not home.is_dir():  # a Store would create it
        raise ConfigError(f"--home {home}: no such directory")
    screen = console()
    screen.print(audit_table(audit.last(Store(home), last), screen))
    for line in contracts(home):
        screen.print(line, soft_wrap=True)


@app.command()
def doctor(
    node_config: Annotated[
        str,
        typer.Option(
            metavar="CONFIG",
            help="The --node-config of flower-supernode, or a TOML file.",
        ),
    ],
    superlink: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Also test TLS to this SuperLink.")
    ] = "",
    root_certificates: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CA certificates for that test.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Check a node before it takes part; run it as the node's own user."""
    from flhe.provision import doctor as checks
    from flhe.provision.flower_config import parse

    found = checks.examine(parse(node_config), superlink, root_certificates)
    if json_file is not None:
        write_json(json_file, checks.to_json(found))
    console(json_file).print(checks.table(found))
    if any(check.level == "fail" for check in found):
        raise typer.Exit(1)


@app.command()
def permit(
    home: Annotated[Path, typer.Option(metavar="DIR", help="The node's state directory.")],
) -> None:
    """Let one more federation begin on this node: only the next `flwr run`.

    Run it as the node's own user. The node needs no restart.
    """
    from flhe.provision import permits

    typer.echo(permits.grant(home))


@app.command()
def budget(
    node_config: Annotated[
        str,
        typer.Option(
            metavar="CONFIG",
            help="The --node-config of flower-supernode, or a TOML file.",
        ),
    ],
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Trust the existing record from now on.")
    ] = False,
) -> None:
    """Show how much of its privacy budget this node's updates have spent.

    Run it as the node's own user.
    """
    from flhe.provision import budgets
    from flhe.provision.flower_config import parse

    found = budgets.budget_of(parse(node_config))
    console().print(budgets.table(found))
    if confirm:
        found.confirm()
        typer.echo("This record is trusted from now on.")


app.add_typer(roster_commands, name="roster", cls=Commands)
app.add_typer(key_commands, name="keys", cls=Commands)


def _add_others() -> None:
    """Add the commands of other distributions; skip, with a message, those that do not load."""
    for found in sorted(entry_points(group=ENTRY_POINT)):
        try:
            app.add_typer(found.load())
        except Exception as error:
            typer.echo(f"flhe: the commands of {found.value} do not load: {error}", err=True)


_add_others()


if __name__ == "__main__":
    app()
