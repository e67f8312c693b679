"""Which stage calls what."""

from __future__ import annotations

from flhe.mods import agreement, handover, scheme_keys, staged, survivors, training
from flhe.mods.stages import Stage

STAGES: dict[tuple[str, str], Stage] = {
    ("train", "advertise"): agreement.advertise,
    ("train", "share"): agreement.share,
    ("train", "confirm"): agreement.confirm,
    ("train", "key-pair"): scheme_keys.make_pair,
    ("train", "take-pair"): scheme_keys.take_pair,
    ("train", "joint"): scheme_keys.share,
    ("train", "joint-sum"): scheme_keys.add,
    ("train", "key-commit"): scheme_keys.commit,
    ("train", "key-reveal"): scheme_keys.reveal,
    ("train", "key-shared"): scheme_keys.finish_shared,
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
