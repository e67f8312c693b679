"""`flhe ...` on the command line.

Commands import heavy packages when they run: `flhe --help` loads neither flwr, torch nor numba.
`flhe.answer.EXIT_CODES` has the exit codes.
"""

from __future__ import annotations

from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Annotated

import typer

from flhe.answer import Answer, working
from flhe.command_group import (
    COORDINATOR,
    ENTRY_POINT,
    SITE,
    Commands,
    OneLineErrors,
    examples,
    option,
)
from flhe.errors import ConfigError
from flhe.provision.federation.commands import federation as federation_commands
from flhe.provision.key_commands import keys as key_commands
from flhe.provision.site.commands import GATE, Directory, Federation
from flhe.provision.site.commands import site as site_commands

app = typer.Typer(
    cls=OneLineErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Homomorphic encryption and secure aggregation for Flower federations.",
    epilog=examples("flhe run sash --rounds 3", "flhe keygen --help"),
)
Home = Annotated[Path, option("The node's state directory.", "DIR", "--home")]
NodeConfig = Annotated[
    str, option("The --node-config of flower-supernode, or a TOML file.", "CONFIG")
]


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


@app.command(
    rich_help_panel=SITE,
    epilog=examples('flhe keygen --scheme esafl --roster sites --roster-hash "$HASH" --out dealt'),
)
def keygen(
    scheme: Annotated[str, option("Deal keys for this scheme.")] = "",
    roster: Annotated[Path | None, option("The sites' roster.", "FILE")] = None,
    roster_hash: Annotated[str, option("The roster's hash, as sites pin it.", "HEX")] = "",
    ring: Annotated[str, option("Ring of the keys; default: the scheme's own.")] = "",
    without: Annotated[list[str] | None, option("Leave this site out; repeatable.", "NAME")] = None,
    show: Annotated[
        Path | None, option("Show the public part of a dealt key file.", "FILE")
    ] = None,
    out: Annotated[Path | None, option("Directory of the dealt keys.", "DIR")] = None,
) -> Answer:
    """Deal keys to all sites, as a trusted dealer.

    It takes --scheme, --roster, --roster-hash and --out. `flhe site init` makes a site's identity.
    """
    from flhe.provision import keygen as dealer

    if show is not None:
        return dealer.show(show)
    with working("dealing keys"):
        return dealer.keygen(scheme, roster, roster_hash, out, ring, without or ())


@app.command("log", rich_help_panel=SITE, epilog=examples("flhe log --home state --last 20"))
def show_log(
    home: Home,
    last: Annotated[int, option("Newest lines only.", "N", "--last", min=1)] = 50,
) -> Answer:
    """Show a node's audit log: the requests that it received and its answers."""
    from flhe.node import audit
    from flhe.node.store import Store
    from flhe.provision.audit_table import audit_table, contracts

    if not home.is_dir():  # a Store would create it
        raise ConfigError(f"--home {home}: no such directory")
    entries, found = audit.last(Store(home), last), contracts(home)
    data = {"entries": entries, "contracts": {name: lines for name, *lines in found}}
    return Answer(data, audit_table(entries), *("\n  ".join(lines) for lines in found))


@app.command(
    rich_help_panel=SITE,
    epilog=examples(
        "flhe doctor --node-config node.toml",
        "flhe doctor --node-config node.toml --superlink fl.example.org:9092 --json",
    ),
)
def doctor(
    node_config: NodeConfig,
    superlink: Annotated[str, option("Also test TLS to this SuperLink.", "HOST:PORT")] = "",
    root_certificates: Annotated[
        Path | None, option("CA certificates for that test.", "FILE")
    ] = None,
) -> Answer:
    """Check a node before it takes part.

    Run it as the node's own user. The exit code is 1 if a check fails.
    """
    from flhe.provision import doctor as checks
    from flhe.provision.flower_config import parse

    with working("checking the node"):
        found = checks.examine(parse(node_config), superlink, root_certificates)
    return Answer(found, *checks.lines(found), failed=any(c.level == "fail" for c in found))


@app.command(rich_help_panel=SITE, epilog=examples("flhe permit --home state"))
def permit(home: Home) -> Answer:
    """Permit one more federation on this node: only the next `flwr run`.

    Run it as the node's own user. The node needs no restart.
    """
    from flhe.provision import permits

    return permits.grant(home)


@app.command(
    rich_help_panel=SITE,
    epilog=examples(
        "flhe budget --node-config node.toml", "flhe budget --node-config node.toml --confirm"
    ),
)
def budget(
    node_config: NodeConfig,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Trust the existing record from now on.")
    ] = False,
) -> Answer:
    """Show how much of its privacy budget this node's updates have spent.

    Run it as the node's own user.
    """
    from flhe.provision import budgets
    from flhe.provision.flower_config import parse

    config = parse(node_config)
    found = budgets.budget_of(config, look=not confirm)
    answer = budgets.answer(found)
    if not confirm:
        answer.shown += tuple(budgets.doubts(config))
    if confirm:
        found.confirm()
        answer.shown += ("This record is trusted from now on.",)
    return answer


@app.command(
    "open",
    rich_help_panel=SITE,
    epilog=examples("flhe open model.flhe --key state --output model.npz"),
)
def open_model(
    sealed: Annotated[Path, typer.Argument(help="The sealed model that a run wrote.")],
    key: Annotated[
        Path, typer.Option("--key", help="A member's state directory, or one above several.")
    ],
    output: Annotated[
        Path | None, option("Output file: .npz (default) or .pt.", "FILE", "--output", "-o")
    ] = None,
) -> Answer:
    """Open a sealed model with a key of its group."""
    from flhe.node.checkpoint import open_checkpoint, write_model

    out = output or sealed.with_suffix(".npz")
    if out.resolve() == sealed.resolve():
        raise ConfigError(f"{sealed}: the sealed model itself; name another file with --output")
    with working("opening the model"):
        model = open_checkpoint(sealed, key)
        write_model(model, out)
    arrays, count = len(model.layout.entries), model.layout.floats + model.layout.integers
    return Answer(
        {"file": out, "arrays": arrays, "values": count, "round": model.round},
        f"{out}: {arrays} arrays, {count:,} values, round {model.round}",
    )


@app.command(rich_help_panel=SITE, epilog=examples("flhe gate cardio --dir site-a"))
def gate(
    federation: Federation,
    directory: Directory = None,
    home: Annotated[
        Path | None, option("The gate's own directory. Default: gate inside --dir.", "DIR")
    ] = None,
    listen: Annotated[str, option("Where it listens.", "ADDRESS:PORT", envvar="FLHE_GATE")] = GATE,
    max_gigabytes: Annotated[
        float, typer.Option(min=0.001, help="Size of the longest reply that may leave.")
    ] = 4.0,
    anywhere: Annotated[
        bool, typer.Option("--anywhere", help="Listen to other machines too.")
    ] = False,
) -> None:
    """Let nothing leave this site but what flhe has sealed: a proxy before the SuperNode.

    It goes by the site's card, its settings and the federation's file. Without it the SuperNode
    reaches nobody. Run it as a user of its own.
    """
    from flhe.provision import gates
    from flhe.provision.site.layout import Layout

    layout = Layout.of(federation, directory)
    most = int(max_gigabytes * (1 << 30))
    gates.run(gates.of_layout(layout, home, listen, most, anywhere=anywhere))


app.add_typer(site_commands, name="site", cls=Commands, rich_help_panel=SITE)
app.add_typer(key_commands, name="keys", cls=Commands, rich_help_panel=SITE)
app.add_typer(federation_commands, name="federation", cls=Commands, rich_help_panel=COORDINATOR)


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
