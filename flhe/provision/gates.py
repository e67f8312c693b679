"""`flhe gate`: settings of a gate, from a site's directory."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from flhe.answer import notes
from flhe.gate.policy import GatePolicy
from flhe.gate.run import Settings, listening
from flhe.node.policy import Policy
from flhe.provision import node_key
from flhe.provision.check_tls import check_tls
from flhe.provision.flower_config import parse
from flhe.provision.site.layout import Layout
from flhe.provision.site.start import joined


def run(settings: Settings) -> None:
    """Serve, and say where; first what is wrong with the SuperLink's certificate, if anything."""
    say = partial(notes().print, markup=False, highlight=False, soft_wrap=True)
    # The node's own checks see the gate's certificate, and never this one.
    check = check_tls(settings.superlink, settings.root_certificates)
    if check.level != "ok":
        say(f"SuperLink: {check.says}; {check.mend}")
    with listening(settings) as server:
        host, port, *_ = server.server_address
        say(f"The gate listens on {host!s}:{port}")
        server.serve_forever()


def of_layout(
    layout: Layout, home: Path | None, listen: str, most: int, *, anywhere: bool
) -> Settings:
    """Return the settings of the gate of a site, which has joined; ConfigError otherwise."""
    layout.check_user(layout.gate_user, "gate")
    address, (_, card) = joined(layout).address, layout.card()
    node = Policy.of_node(parse(f"{layout.settings}"), run_id=0, node_id=0, simulated=False)
    return Settings(
        home=home or layout.gate_home,
        policy=GatePolicy(card.public, node.metrics, most),
        superlink=address,
        root_certificates=layout.authority,
        supernode=node_key.pem(card.node_key),
        keys=layout.config,
        listen=listen,
        anywhere=anywhere,
    )
