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
    neighbours: Annotated[
        int, typer.Option(help="Nodes among whom each shares its SASH seed (SASH+); 0: all.")
    ] = 0,
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
def bench(
    schemes: Annotated[
        list[str] | None, typer.Argument(metavar="[SCHEME]...", help="Schemes to time.")
    ] = None,
    values: Annotated[
        int | None,
        typer.Option(help="Values in one update; 1,200,000, or 10,000,000 with --memory."),
    ] = None,
    cohort: Annotated[
        int | None, typer.Option(help="Clients; 10, or 20 with --memory, beside 3.")
    ] = None,
    dropouts: Annotated[int, typer.Option(help="Clients whose upload is missing.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads of one client.")] = 1,
    repeats: Annotated[
        int | None,
        typer.Option(
            help="Counted repeats, after one that warms up: 20, or 3 whole rounds; with --memory 2 "
            "rounds."
        ),
    ] = None,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Time TenSEAL's CKKS and BFV and python-paillier beside it, the last projected from a "
            "sample.",
        ),
    ] = False,
    top_k: Annotated[
        float | None,
        typer.Option("--top-k", help="Time FLASHE of so large a share of each update beside it."),
    ] = None,
    select: Annotated[
        float | None,
        typer.Option(
            "--select", help="Time FedML-HE with so large a share of each update encrypted."
        ),
    ] = None,
    whole_round: Annotated[
        bool,
        typer.Option("--round", help="Time whole rounds instead: a CNN, 1,500 images a client."),
    ] = False,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory",
            help="Measure memory instead: of the ServerApp in deployments on this machine, and of a "
            "federation in one process with ten times the values. About 8 minutes.",
        ),
    ] = False,
    mask_counts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png",
            help="Count FLASHE's masks instead, as clients drop out: a plot, and its data beside it.",
        ),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Time encryption beside what nobody can beat and what else one might use."""
    from flhe.apps.signals import Stopped
    from flhe.sim import commands

    if mask_counts is not None:
        commands.mask_counts(mask_counts)
    elif memory:
        try:
            commands.memory(values=values, cohort=cohort, repeats=repeats, json_file=json_file)
        except Stopped as stopped:
            _exit_stopped(stopped)
    elif whole_round:
        commands.whole_rounds(cohort=cohort, threads=threads, repeats=repeats, json_file=json_file)
    else:
        commands.times(
            schemes,
            values=values,
            cohort=cohort,
            dropouts=dropouts,
            threads=threads,
            repeats=repeats,
            peers=peers,
            top_k=top_k,
            select=select,
            json_file=json_file,
        )


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
def audit(
    out: Annotated[
        Path,
        typer.Argument(metavar="FILE.png", help="The picture; its data and a curve go beside it."),
    ] = Path("privacy_audit.png"),
    select: Annotated[
        float, typer.Option("--select", help="Share encrypted in the picture.")
    ] = 0.1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer images and a weaker attack: half a minute.")
    ] = False,
    images: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Your own images; else some that come with scikit-learn."),
    ] = None,
    count: Annotated[int | None, typer.Option(help="How many images.")] = None,
    clip: Annotated[
        float | None, typer.Option(help="Clipping threshold of what is in clear; none unless said.")
    ] = None,
    noise: Annotated[
        float, typer.Option(help="Scale of Laplace noise on what is in clear; 0: none.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the models and the attacks.")] = 0,
) -> None:
    """Attack what a server sees of an update, and show what comes of it (about 10 minutes)."""
    from flhe.sim import commands

    commands.privacy_audit(
        out,
        select=select,
        quick=quick,
        data=images,
        count=count,
        clip=clip,
        noise=noise,
        seed=seed,
    )


@app.command()
def advise(
    params: Annotated[str, typer.Option(help="Values of the model, such as 25M or 1.2k.")],
    clients: Annotated[int, typer.Option(help="Clients of a round.")],
    uplink: Annotated[
        str, typer.Option(help="What each sends with, such as 40Mbps, 1Gbps or 5MB/s.")
    ] = "",
    downlink: Annotated[str, typer.Option(help="What each receives with; as --uplink.")] = "",
    server_link: Annotated[
        str, typer.Option(help="The server's own link, both ways; else it never limits.")
    ] = "",
    wan: Annotated[
        str, typer.Option(help="Instead of links: a paper's network by name, or a .toml.")
    ] = "",
    dropout: Annotated[
        float, typer.Option(help="Chance that a client's update is missing from a round.")
    ] = 0.0,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds to convergence; 100 where nobody knows.")
    ] = None,
    train: Annotated[float, typer.Option(help="Seconds that a client trains in a round.")] = 0.0,
    server_may_see_model: Annotated[
        bool, typer.Option("--server-may-see-model", help="The server may read each round's sum.")
    ] = False,
    members_may_collude: Annotated[
        bool,
        typer.Option("--members-may-collude", help="A third may conspire with the server."),
    ] = False,
    colluders: Annotated[
        int | None, typer.Option(help="So many may conspire with the server; 0: none.")
    ] = None,
    passive_server: Annotated[
        bool, typer.Option("--passive-server", help="It follows the protocol all the same.")
    ] = False,
    trusted_dealer: Annotated[
        bool, typer.Option("--trusted-dealer", help="Somebody whom all trust deals keys.")
    ] = False,
    clear_part: Annotated[
        bool, typer.Option("--clear-part", help="A part of each update may travel in clear.")
    ] = False,
    sparse: Annotated[
        bool,
        typer.Option("--sparse", help="A tenth of each update may be sent, and which be seen."),
    ] = False,
    memory: Annotated[
        str, typer.Option(help="Memory of each machine, such as 8GB; else this one's.")
    ] = "",
    prices: Annotated[
        str, typer.Option(help="Prices: batchcrypt or flashe, as in the papers, or a .toml.")
    ] = "flashe",
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure this machine anew: half a minute.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Say which scheme suits a federation: ranked by seconds a round, and why not the others.

    The first time it measures how fast this machine is at each scheme, for half a minute.
    """
    from flhe.sim.advise import report

    report.command(
        params=params,
        clients=clients,
        uplink=uplink,
        downlink=downlink,
        server_link=server_link,
        wan_name=wan,
        prices_name=prices,
        memory_size=memory,
        dropout=dropout,
        rounds=rounds,
        train_s=train,
        server_may_see_model=server_may_see_model,
        members_may_collude=members_may_collude,
        colluders=colluders,
        passive_server=passive_server,
        trusted_dealer=trusted_dealer,
        clear_part=clear_part,
        sparse=sparse,
        calibrate_anew=calibrate,
        json_file=json_file,
    )


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
app.add_typer(roster_commands, name="roster", cls=Commands)
app.add_typer(key_commands, name="keys", cls=Commands)


if __name__ == "__main__":
    app()
