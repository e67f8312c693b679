"""Which stage calls what."""

from __future__ import annotations

from flhe.mods import agreement, handover, joint, key_pair, staged, survivors, training
from flhe.mods.stages import Stage

STAGES: dict[tuple[str, str], Stage] = {
    ("train", "advertise"): agreement.advertise,
    ("train", "share"): agreement.share,
    ("train", "confirm"): agreement.confirm,
    ("train", "key-pair"): key_pair.make,
    ("train", "take-pair"): key_pair.take,
    ("train", "joint"): joint.share,
    ("train", "joint-sum"): joint.add,
    ("train", "status"): handover.status,
    ("train", "initial"): handover.initial,
    ("train", "sync"): handover.sync,
    ("train", "checkpoint"): handover.checkpoint,
    ("train", "verify"): handover.verify,
    ("train", "round"): training.train,
    ("train", "supports"): staged.supports,
    ("train", "update"): staged.update,
    ("train", "consist"): survivors.consist,
    ("train", "unmask"): survivors.unmask,
    ("evaluate", "evaluate"): training.evaluate,
}
"""(message type, stage) -> its answer."""
