"""`flhe ...` on the command line.

Each command imports what it needs when it runs: `flhe --help` loads neither flwr, torch nor numba.
Whatever flhe raises on purpose becomes one line on standard error and exit code 1; 2 where `keygen`
refuses, as for a command line that cannot be read.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from flhe.command_group import Commands, OneLineErrors
from flhe.json_option import JsonFile, console, write_json
from flhe.provision.key_commands import keys as key_commands
from flhe.provision.permit_command import permit
from flhe.provision.roster_commands import roster as roster_commands
from flhe.sim.advise.command import advise
from flhe.sim.audit.command import audit
from flhe.sim.bench.command import bench
from flhe.sim.crowd.command import crowd
from flhe.sim.rehearsal.command import rehearse

if TYPE_CHECKING:
    from flhe.apps.signals import Stopped


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


@app.command()
def run(
    ctx: typer.Context,
    scheme: Annotated[
        str,
        typer.Option(
            help="flashe, sash, batchcrypt, esafl, fedml-he, or plain for ordinary FedAvg."
        ),
    ] = "flashe",
    task: Annotated[
        str,
        typer.Option(
            help="digits, cifar10 or fashion-mnist; the papers' fcn, alexnet, lstm, resnet20, gru or "
            "cnn; fcn-digits or cnn-digits, which need no files."
        ),
    ] = "digits",
    nodes: Annotated[int, typer.Option(help="Nodes in the federation.")] = 5,
    rounds: Annotated[int, typer.Option(help="Rounds of training.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the model, the split and the batches.")] = 0,
    json_file: JsonFile = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Append a JSON line after each round: what each phase of it took."
        ),
    ] = None,
    tensorboard: Annotated[
        str, typer.Option(metavar="DIR", help="Write the same for TensorBoard, into DIR.")
    ] = "",
    partition: Annotated[str, typer.Option(help="How data is split: iid or dirichlet.")] = "iid",
    alpha: Annotated[
        float, typer.Option("--dirichlet-alpha", help="Evenness of a dirichlet split.")
    ] = 0.5,
    local_epochs: Annotated[int, typer.Option(help="Epochs a node trains in a round.")] = 5,
    algorithm: Annotated[
        str, typer.Option(help="fedavg, or fedsgd: nodes send gradients, and all step alike.")
    ] = "fedavg",
    client_optimizer: Annotated[
        str, typer.Option("--optimizer", help="What steps under fedsgd: adam, rmsprop or sgd.")
    ] = "",
    client_lr: Annotated[
        float, typer.Option("--lr", help="Its learning rate; 0: PyTorch's default.")
    ] = 0.0,
    batch_size: Annotated[int, typer.Option(help="Examples of a batch.")] = 32,
    server_optimizer: Annotated[
        str, typer.Option(help="fedavg, fedavgm, fedadagrad, fedadam or fedyogi.")
    ] = "fedavg",
    proximal_mu: Annotated[
        float, typer.Option(help="Weight of FedProx's proximal term; 0 trains without it.")
    ] = 0.0,
    fair_q: Annotated[
        float, typer.Option("--fair-q", help="Fairness q of q-FedAvg; 0 is FedAvg.")
    ] = 0.0,
    masking: Annotated[
        str, typer.Option(help="FLASHE's masking: double, single or adaptive.")
    ] = "double",
    top_k: Annotated[
        float,
        typer.Option("--top-k", help="Share of each layer's values that a node sends; 0: all."),
    ] = 0.0,
    warmup: Annotated[
        int, typer.Option(help="Rounds at shares of 0.8, 0.4 and 0.2 each before --top-k.")
    ] = 10,
    permute: Annotated[
        bool, typer.Option(help="Hide from the server which values were sent.")
    ] = True,
    clipping: Annotated[
        str, typer.Option(help="Clipping thresholds: fixed, history or exchange.")
    ] = "fixed",
    unmask: Annotated[
        str, typer.Option(help="Who reads the sums of SASH: server or clients.")
    ] = "server",
    drops: Annotated[
        int, typer.Option(help="Nodes that drop out of each round, at random stages.")
    ] = 0,
    key_bits: Annotated[
        int, typer.Option(help="Bits of BatchCrypt's Paillier modulus: 2048, 3072 or 4096.")
    ] = 3072,
    advance: Annotated[
        bool, typer.Option("--advance", help="BatchCrypt's advance scaling.")
    ] = False,
    ring: Annotated[
        str, typer.Option(help="ESAFL's ring; rns-8192 and rns-16384 take fewer bytes.")
    ] = "goldilocks-4096",
    per_round_keys: Annotated[
        bool, typer.Option("--per-round-keys", help="ESAFL: fresh keys in each round.")
    ] = False,
    select: Annotated[
        float,
        typer.Option(help="Share of an update that is encrypted; the server sees the rest."),
    ] = 1.0,
    rule: Annotated[
        str,
        typer.Option(help="What chooses it: sensitivity, magnitude, random or layers:REGEX."),
    ] = "sensitivity",
    rest: Annotated[
        str, typer.Option(help="The rest travels in clear, or drop: it is not sent.")
    ] = "clear",
    noise: Annotated[
        float, typer.Option(help="Scale of Laplace noise on updates, in their units; 0: none.")
    ] = 0.0,
    noise_scope: Annotated[
        str, typer.Option(help="What gets noise: what travels in clear, or all.")
    ] = "clear",
    kill: Annotated[
        int, typer.Option(help="Round in which one node is killed, for good; 0: none.")
    ] = 0,
    data_dir: Annotated[
        str,
        typer.Option(
            envvar="FLHE_DATA_DIR",
            help="Where the data set lies: a directory, or an .npz or .txt file.",
        ),
    ] = "",
    rekey_every: Annotated[
        int, typer.Option(help="Rounds after which the nodes agree on fresh keys; 0: never.")
    ] = 0,
    checkpoint_every: Annotated[
        int, typer.Option(help="Rounds after which a node seals the model; 0: only when needed.")
    ] = 10,
    secret_initial: Annotated[
        bool, typer.Option("--secret-initial", help="A node makes the initial model and seals it.")
    ] = False,
    output: Annotated[str, typer.Option(metavar="FILE", help="Where the final model goes.")] = "",
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="DIR",
            help="Go on with the run whose directory this is; --rounds may add to its rounds.",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Longest time for it all, in seconds.")] = 7200.0,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show Flower's log, and tracebacks.")
    ] = False,
) -> None:
    """Train a real model across a simulated federation."""
    options: dict[str, Any] = {
        _FIELDS.get(name, name): value for name, value in locals().items() if name not in _NO_FIELDS
    }
    from flhe.apps import launch
    from flhe.apps.settings import Settings

    ctx.find_root().meta["flhe.verbose"] = verbose
    how: dict[str, Any] = {
        "json_path": json_file,
        "report_path": report,
        "timeout": timeout,
        "verbose": verbose,
    }
    try:
        if resume is None:
            launch.run(Settings(**options), **how)
        else:
            given = {field: value for field, value in options.items() if _given(ctx, field)}
            launch.resume(resume, given, **how)
    except launch.Stopped as stopped:
        _exit_stopped(stopped)


_FIELDS = {"rounds": "num_rounds", "alpha": "dirichlet_alpha", "output": "sealed_model"}
"""Options of `run` that fields of Settings have another name for."""

_NO_FIELDS = ("ctx", "json_file", "report", "resume", "timeout", "verbose")
"""Those that are none."""


def _given(ctx: typer.Context, field: str) -> bool:
    """Whether the user said the option of a field of Settings, rather than leave its default."""
    names = {field: name for name, field in _FIELDS.items()}
    source = ctx.get_parameter_source(names.get(field, field))
    return source is not None and source.name == "COMMANDLINE"


def _exit_stopped(stopped: Stopped) -> NoReturn:
    """Say what ended a command, and how to go on where that is possible."""
    hint = f"; {stopped.hint}" if stopped.hint else ""
    typer.echo(f"flhe: stopped by {stopped}; everything it started is stopped too{hint}", err=True)
    raise typer.Exit(128 + stopped.number) from None


@app.command("open")
def open_model(
    sealed: Annotated[Path, typer.Argument(help="The sealed model that a run wrote.")],
    key: Annotated[
        Path, typer.Option("--key", help="A member's state directory, or one above several.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to: .npz (default) or .pt."),
    ] = None,
) -> None:
    """Open a sealed model with a key of its group."""
    from flhe.checkpoint import open_checkpoint, write_model

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
    name: Annotated[str, typer.Option(help="What other sites call the site.")] = "",
    scheme: Annotated[
        str, typer.Option(help="What keys are dealt for: eshe (or esafl, its system).")
    ] = "",
    roster: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The roster that the sites agreed on.")
    ] = None,
    roster_hash: Annotated[
        str, typer.Option(metavar="HEX", help="Its hash, as the sites pin it.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="File of the site's request to be listed (NAME.site); of dealt keys, the directory.",
        ),
    ] = None,
    ring: Annotated[str, typer.Option(help="The ring of the keys.")] = "goldilocks-4096",
    without: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Leave this site out; repeatable.")
    ] = None,
    show: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Show instead what a site may say of its file."),
    ] = None,
) -> None:
    """Make the identity of a site: `--home DIR --name NAME`.

    Or deal keys to the sites offline, where a federation trusts somebody to: `--scheme eshe --roster
    FILE --roster-hash HEX --out DIR`.
    """
    from rich.console import Console

    from flhe import keygen as dealer
    from flhe.errors import ConfigError

    if home is not None or name:
        if home is None or not name or scheme or roster or show:
            raise ConfigError(
                "an identity takes --home DIR and --name NAME, and --out FILE where it should not be "
                "NAME.site; keys that are dealt take neither"
            )
        from flhe.provision import sites

        typer.echo(sites.enrol(home, name, out).report())
        return
    if show is not None:
        Console().print(dealer.show(show))
        return
    dealing = dealer.keygen(scheme, roster, roster_hash, out, ring, without or ())
    Console().print(dealing.table())
    Console().print(dealing.next_steps(), markup=False, highlight=False, soft_wrap=True)


@app.command("log")
def show_log(
    home: Annotated[Path, typer.Option("--home", metavar="DIR", help="A node's state directory.")],
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=1, help="Newest lines only.")
    ] = 50,
) -> None:
    """Show what a node was asked and what it answered: its audit log."""
    from rich.console import Console

    from flhe.errors import ConfigError
    from flhe.keys.store import Store
    from flhe.mods import audit
    from flhe.mods.audit_table import AuditTable

    if not home.is_dir():  # a Store would make it
        raise ConfigError(f"--home {home}: no such directory")
    Console().print(AuditTable(audit.last(Store(home), last)))


@app.command()
def tables(
    sections: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SECTION]...",
            help="Tables and figures, or papers: see --list. All unless said.",
        ),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full/--quick",
            help="Everything, about an hour, to be stopped and gone on with at will; or in five "
            "minutes what small samples tell.",
        ),
    ] = False,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where results.md goes, and results/ with all it shows."),
    ] = Path(),
    data_dir: Annotated[
        str,
        typer.Option(
            envvar="FLHE_DATA_DIR",
            help="Where data sets lie; learning curves that have none are left out.",
        ),
    ] = "",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again what an earlier run has measured.")
    ] = False,
    listing: Annotated[
        bool, typer.Option("--list", help="List the sections, and measure nothing.")
    ] = False,
) -> None:
    """Measure the papers' tables and figures on this machine, beside what one might use instead."""
    from flhe.sim.tables import command

    command.tables(
        sections or (), full=full, out=out, fresh=fresh, data_dir=data_dir, listing=listing
    )


@app.command()
def corrections(
    name: Annotated[str, typer.Argument(help="Which proof to run; none lists them.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Run all of them.")] = False,
    page: Annotated[bool, typer.Option("--page", help="Print docs/corrections.md.")] = False,
) -> None:
    """Show what the papers get wrong or leave open, each with a proof that runs."""
    from flhe.sim.papers.corrections.listing import corrections

    corrections(name, every=every, as_page=page)


@app.command()
def doctor(
    node_config: Annotated[
        str,
        typer.Option(
            metavar="CONFIG",
            help="What flower-supernode is given as --node-config, or a TOML file.",
        ),
    ],
    superlink: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Try TLS to this SuperLink, too.")
    ] = "",
    root_certificates: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificates that it is verified with.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Check a node before it takes part: run it as the user that the node runs as."""
    from flhe.apps.node_config import parse
    from flhe.provision import doctor as checks

    found = checks.examine(parse(node_config), superlink, root_certificates)
    if json_file is not None:
        write_json(json_file, checks.to_json(found))
    console(json_file).print(checks.table(found))
    if any(check.level == "fail" for check in found):
        raise typer.Exit(1)


app.command()(permit)
app.command()(bench)
app.command()(advise)
app.command()(audit)
app.command()(crowd)
app.command()(rehearse)
app.add_typer(roster_commands, name="roster", cls=Commands)
app.add_typer(key_commands, name="keys", cls=Commands)


if __name__ == "__main__":
    app()
