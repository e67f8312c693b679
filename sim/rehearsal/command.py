"""`flhe rehearse`: progress, a table, a report, and a true exit code."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from flhe.answer import Answer
from flhe.command_group import option
from flhe.errors import FlheError

if TYPE_CHECKING:
    from rich.table import Table

    from flhe_lab.rehearsal.app import Plan
    from flhe_lab.rehearsal.logs import Logs, Say
    from flhe_lab.rehearsal.verdict import Report


def rehearse(
    scheme: Annotated[
        list[str] | None, option("A scheme to run; repeatable. All run at once.")
    ] = None,
    rounds: Annotated[int, option("Rounds of training.")] = 3,
    values: Annotated[int, option("Values of the model.")] = 5_000,
    kill: Annotated[bool, option("Kill a SuperNode in round 2.", None, "--kill/--no-kill")] = True,
    renew: Annotated[
        bool,
        option("Stop each run after round 1, and resume it with another rate.", None, "--renew"),
    ] = False,
    keep: Annotated[
        bool,
        option("Leave everything up until Ctrl-C, and print where it is.", None, "--keep"),
    ] = False,
    patience: Annotated[
        float,
        option("Multiply every time limit, for a busy machine.", "FACTOR"),
    ] = 1.0,
) -> Answer:
    """Rehearse a deployment on this machine, and search its traffic.

    A SuperLink and three SuperNodes have TLS, SuperNode authentication, signed apps and a pinned
    roster, as between organisations. The exit code is 0 only if every sum is right and no secret was
    on the wire.
    """
    from flhe_app.environment import temporary
    from flhe_lab.rehearsal.app import Plan
    from flhe_lab.rehearsal.logs import kept_logs, telling

    schemes = tuple(scheme or Plan().schemes)
    plan = Plan(schemes, rounds, values, kill, renew, patience)
    with telling() as say, temporary() as scratch, kept_logs(scratch, say) as logs:
        report = _work(plan, scratch, logs, say, keep=keep)
        logs.failed = bool(report.wrong)
    text = "\n".join(summary(report))
    return Answer(asdict(report), table(report), text, failed=bool(report.wrong))


def _work(plan: Plan, scratch: Path, logs: Logs, say: Say, *, keep: bool) -> Report:
    from flhe_lab.rehearsal.loopback import Loopback
    from flhe_lab.rehearsal.verdict import check

    began = time.monotonic()
    loopback = Loopback(plan, scratch, logs, say)

    def stay(what: str) -> None:
        """Leave everything as it is until a signal ends it, which is raised as Stopped."""
        say(f"{what} in {scratch}; end it with Ctrl-C, which skips the search of the traffic")
        for line in loopback.another_run():
            say(line)
        threading.Event().wait()

    with loopback.up():
        try:
            loopback.work()
        except FlheError as error:
            logs.failed = True  # also where Ctrl-C ends the wait below
            if keep:
                stay(f"failed: {error}; what is left is")
            raise
        seconds = time.monotonic() - began
        if keep:
            stay("done; all is left up")
        loopback.machines.end()
        say("searching the traffic")
        return check(loopback, seconds)


def table(report: Report) -> Table:
    """A line a round."""
    from rich.table import Table

    out = Table(title=f"three sites, {report.seconds:.0f} s in all")
    for heading in ("scheme", "round", "seconds", "updates of", "error of the mean"):
        out.add_column(heading, justify="right" if heading in ("round", "seconds") else "left")
    for result in report.results:
        name = f"{result.scheme} ({result.seconds:.0f} s)"
        for each in result.rounds:
            sites, error = ", ".join(each.sites), f"{each.error:.1e}"
            out.add_row(name, str(each.number), f"{each.seconds:.0f}", sites, error)
            name = ""
        out.add_section()
    return out


def summary(report: Report) -> list[str]:
    """What happened besides, in words; what is wrong comes last."""
    lines = []
    if report.killed:
        lines.append(
            f"{report.killed} was killed after {report.killed_s:.0f} s, and back after "
            f"{report.back_s:.0f} s, at its start no. {report.starts}"
        )
    traffic = report.traffic
    megabytes = (traffic.bytes_up + traffic.bytes_down) / 1e6
    lines.append(
        f"searched {megabytes:.1f} MB ({traffic.requests:,} requests, {traffic.arrays} arrays) for "
        + ", ".join(f"{count} x {kind}" for kind, count in traffic.searched.items() if count)
    )
    lines.append(f"controls found: {sum(traffic.controls.values())} of {len(traffic.controls)}")
    wrong = [f"WRONG: {what}" for what in report.wrong]
    return [*lines, *(wrong or ["all is as it must be"])]
