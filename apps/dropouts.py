"""Dropouts: nodes that fail during a round, so that a simulation shows the cost.

The run's seed decides which nodes fail, and at which stage, so that two runs compare. A node that
drops out is back in the next round. One node may also be killed: it never answers again until the
run ends. (A resumed run starts all nodes, and the dead one dies again in its next training.)

In a simulation the workers of Flower's backend share all nodes, so none of them may exit. So a node
that drops out answers with the network's error for a lost node.
"""

from __future__ import annotations

from collections.abc import Callable
from logging import WARNING, getLogger

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message

from flhe.mods import records
from flhe_app.settings import Settings

log = getLogger("flwr").log

UNAVAILABLE = 5
"""Flower's code for a lost node."""

STAGES = ("round", "answer", "consist", "unmask")
"""Stages of a possible dropout, in the order of a round; "answer" loses the round's reply."""

KILLED = "flhe-app.killed"
"""Record in a dead node's context: most messages do not name a round of training."""

Next = Callable[[Message, Context], Message]


def dropout(message: Message, context: Context, call_next: Next) -> Message:
    """Mod before all others: lets this node fail when the seed says so."""
    settings = Settings.from_config(context.run_config)
    found = _round_and_stage(message)
    if settings.kill and _is_dead(settings, context, found):
        return Message(Error(UNAVAILABLE, "killed"), reply_to=message)
    if not settings.drops or found is None:
        return call_next(message, context)
    round_, stage = found
    partition = int(context.node_config["partition-id"])
    place = drops_at(settings.seed, round_, partition, settings.nodes, settings.drops)
    if place is None or STAGES.index(stage) < STAGES.index(place):
        if not (place == "answer" and stage == "round"):
            return call_next(message, context)
        call_next(message, context)
    return Message(Error(UNAVAILABLE, "dropped out"), reply_to=message)


def drops_at(seed: int, round_: int, partition: int, nodes: int, drops: int) -> str | None:
    """Return the stage at which node `partition` drops out, or None; `drops` of `nodes` do."""
    draw = np.random.default_rng([seed, round_])
    gone = draw.permutation(nodes)[:drops].tolist()
    if partition not in gone:
        return None
    return STAGES[draw.integers(len(STAGES), size=drops)[gone.index(partition)]]


def victim(seed: int, kill: int, nodes: int) -> int:
    """Return the partition of the node that is killed in round `kill`."""
    return int(np.random.default_rng([seed, kill, nodes]).integers(nodes))


def _is_dead(settings: Settings, context: Context, found: tuple[int, str] | None) -> bool:
    """Return whether this node is dead, from its training in round `kill` on; record its death."""
    partition = int(context.node_config["partition-id"])
    if partition != victim(settings.seed, settings.kill, settings.nodes):
        return False
    if KILLED not in context.state and found is not None and found[0] >= settings.kill:
        context.state[KILLED] = ConfigRecord({"round": found[0]})
        log(WARNING, "round %d: this node is killed, for good (kill=%d)", found[0], settings.kill)
    return KILLED in context.state


def _round_and_stage(message: Message) -> tuple[int, str] | None:
    """Return round and stage of a training message, encrypted or not; None for any other."""
    if message.metadata.message_type != "train":
        return None
    record = records.find_config(message.content, records.STAGE)
    if record is None:
        configs = message.content.config_records.values()
        found = next((c for c in configs if "server-round" in c), ConfigRecord())
        round_ = found.get("server-round")
        return (round_, "round") if isinstance(round_, int) else None
    stage, round_ = str(record.get("stage")), record.get("round")
    if stage in ("supports", "update"):
        stage = "round"
    return (round_, stage) if stage in STAGES and isinstance(round_, int) else None
