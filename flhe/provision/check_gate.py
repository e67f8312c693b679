"""Check of the gate: its code stops updates in clear, under this site's identity and metrics."""

from __future__ import annotations

from collections.abc import Sequence

from flhe.provision.checks import Check


def check_gate(site: bytes, metrics: Sequence[str]) -> Check:
    """Send updates in clear through the gate's code to a sink, and see what arrives there."""
    try:
        from flhe.gate.policy import GatePolicy
        from flhe.gate.probe import leaks
    except ImportError:
        says = "flhe gate cannot run: it needs flwr 1.40 or later, which speaks HTTP"
        return Check("gate", "warn", says, "upgrade flwr, at the site and at the coordinator")
    if found := leaks(GatePolicy(site, tuple(metrics))):
        mend = "do not start this node: reinstall flhe, and report it if the check fails again"
        return Check("gate", "fail", f"it did not stop {' and '.join(found)}", mend)
    return Check("gate", "ok", "sent an update in clear through it to a sink: stopped, code 1033")
