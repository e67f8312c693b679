"""HEMod: the client mod that encrypts the app's updates.

Stages of flhe travel as ordinary `train` and `evaluate` messages with an `flhe.stage` record. The
mod answers the key agreement without calling the app; in training the app sees ordinary arrays,
never ciphertext. A message without that record is a plain one, and refused unless the node's own
policy allows such runs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from flhe.errors import ConfigError, FlheError, LeftError, PolicyError, ProtocolError, logger
from flhe.math.buffers import give_back
from flhe.mods import agreement, follow, queries, records, staged, survivors, training
from flhe.mods.app import Answer, App, AppError, Initial, Next, Sensitivity
from flhe.mods.app_state import AppState
from flhe.node import audit
from flhe.node.audit import log_failure
from flhe.node.node import Node, open_store
from flhe.node.policy import Policy, configured
from flhe.node.store import Store
from flhe.packages import warn_untested_flower
from flhe.schemes import PLAIN
from flhe.training.query import Bounded
from flhe.wire.codes import APP, Refusal, refusal_for

Stage = Callable[[Node, ConfigRecord, Message, App], RecordDict]
"""(node, stage record, message, app) -> content of the reply."""

Stages = Mapping[tuple[str, str], Stage]
"""Stage by (message type, stage)."""

STAGES: Stages = {
    ("train", "advertise"): agreement.advertise,
    ("train", "share"): agreement.share,
    ("train", "confirm"): agreement.confirm,
    ("train", "key-pair"): agreement.make_pair,
    ("train", "take-pair"): agreement.take_pair,
    ("train", "joint"): agreement.draw_joint,
    ("train", "joint-sum"): agreement.add_joint,
    ("train", "key-commit"): agreement.key_commit,
    ("train", "key-reveal"): agreement.key_reveal,
    ("train", "key-shared"): agreement.key_shared,
    ("train", "status"): follow.status,
    ("train", "initial"): follow.initial,
    ("train", "sync"): follow.sync,
    ("train", "checkpoint"): follow.checkpoint,
    ("train", "verify"): follow.verify,
    ("train", "round"): training.train,
    ("train", "supports"): staged.supports,
    ("train", "update"): staged.update,
    ("train", "consist"): survivors.consist,
    ("train", "unmask"): survivors.unmask,
    ("train", "void"): survivors.void,
    ("train", "query"): queries.answer,
    ("train", "total"): queries.total,
    ("evaluate", "evaluate"): training.evaluate,
}

LOCKS = 256
"""Number of lock files: messages of two federations that share one wait for each other."""


@dataclass(frozen=True, eq=False)
class HEMod:
    """Encrypts updates; the node's own config sets keys and policy.

    Put it first: `ClientApp(mods=[HEMod()])`. It holds no state: everything that lasts between
    messages is in the node's state directory, and the Context records only its path.

    Parameters
    ----------
    initial : callable, optional
        Context -> ArrayRecord: the initial model, for federations that keep it from the server too
        (`initial_arrays=None` in the strategy). One member makes it.
    sensitivity : callable, optional
        (message, Context) -> sensitivity of each parameter on this node's data, by the model's names:
        for federations that encrypt the most sensitive part of an update. The message is a
        training message; `flhe.coding.sensitivity` computes it for any torch model.
    queries : mapping of str to callable, optional
        (parameters, Context) -> ArrayRecord: this site's answer to the query of each name, as
        integers, or `bounded`, as floats. Only sums of all sites' answers are opened, and only of
        queries that the node's config lists in `flhe-queries`.
    """

    STAGES: ClassVar[Stages] = STAGES

    initial: Initial | None = None
    sensitivity: Sensitivity | None = None
    queries: Mapping[str, Answer | Bounded] = field(default_factory=dict)

    def __call__(self, message: Message, context: Context, call_next: Next) -> Message:
        """Answer one message. Never raises: Flower would send the exception's text to the server."""
        handling = _Handling()
        try:
            warn_untested_flower()
            record = records.find_config(message.content, records.STAGE)
            handling.stage = PLAIN if record is None else str(record.get("stage"))
            handling.asked.update(record or {})
            content = self._answer(handling, record, message, context, call_next)
            handling.audit(content)
        except AppError as error:
            cause = error.__cause__ or error
            if _simulated() and not configured(context.node_config):
                # Its own author looks on; a deployed node keeps to errors.log.
                logger.error("the app failed at stage %r", handling.stage[:16], exc_info=cause)
            return handling.refuse(message, APP, cause)
        except Exception as error:  # whatever it was, its text must not travel
            return handling.refuse(message, refusal_for(error), error)
        return Message(content, reply_to=message)

    def _answer(
        self,
        handling: _Handling,
        record: ConfigRecord | None,
        message: Message,
        context: Context,
        call_next: Next,
    ) -> RecordDict:
        run_config = context.run_config
        policy = Policy.of_node(
            context.node_config,
            run_id=context.run_id,
            node_id=context.node_id,
            simulated=_simulated(),
            plain_asked=run_config.get("scheme") == PLAIN or run_config.get("flhe-plain") is True,
        )
        if policy.home.is_dir():  # refused before anything is made, and told where there is a log
            handling.store = open_store(policy)
        if record is None:
            policy.check_scheme(PLAIN)
        else:
            records.check_version(record)
        handling.store = store = open_store(policy)
        state = AppState(context)
        state.note_home(str(policy.home))
        identity = store.identity()
        federation = context.run_id if record is None else _federation(record, context)
        with store.lock(name=f"lock-{federation % LOCKS}"):  # a server may name any number
            handling.node = node = Node(policy, store, identity, federation)
            if policy.leave:
                node.leave()
                raise LeftError("flhe-leave is set on this node")
            given = self.initial, self.sensitivity, self.queries
            app = App(context, call_next, state, *given)
            # Its order is the server's, and in no hash.
            context.run_config = dict(sorted(context.run_config.items()))
            if record is None:
                if node.encrypted_before():
                    raise PolicyError(
                        "the server asked for plaintext in the middle of an encrypted run"
                    )
                logger.warning(
                    "this run is NOT encrypted: this node's policy allows scheme 'plain'"
                )
                return app.pass_on(message)
            node.mark_encrypted(context.run_id)
            name = records.field(record, "stage", str)
            step = self.STAGES.get((message.metadata.message_type, name))
            if step is None:
                raise ProtocolError("a stage that this version of flhe does not know")
            give_back(records.message_bytes(message.content))  # what unpacking has left
            began = time.perf_counter()
            content = step(node, record, message, app)
            # Not the app's own time, which would say how many examples it has; and rounded, because
            # the rest depends a little on secrets too.
            seconds = float(f"{time.perf_counter() - began - app.seconds:.2g}")
            content.config_records[records.REPLY]["crypto-s"] = seconds
            records.sign(identity, message, content)
            return content


def query_app(queries: Mapping[str, Answer | Bounded]) -> ClientApp:
    """Return an app that answers queries and trains nothing; see `HEMod`.

    Flower calls an app's mods only for registered messages, so this registers unreachable
    functions.
    """
    app = ClientApp(mods=[HEMod(queries=queries)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise ConfigError("this app trains no model, and was asked to")

    return app


@dataclass(slots=True)
class _Handling:
    """One message under way, for the node's own logs."""

    stage: str = "message"
    asked: dict[str, Any] = field(default_factory=dict)
    store: Store | None = None  # only a directory that was found sound is written to
    node: Node | None = None
    began: float = field(default_factory=time.monotonic)

    def audit(self, content: RecordDict, code: int | None = None) -> None:
        """Write the administrator's line. A failure to write it is logged, and stops nothing."""
        if self.store is None:
            return
        node, reply = self.node, records.find_config(content, records.REPLY)
        try:
            kept = None if node is None else node.session()
            entry = audit.Entry(
                run=0 if node is None else node.run_id,
                stage=self.stage,
                answer=audit.answer_of(self.stage, reply) if code is None else audit.REFUSED,
                seconds=time.monotonic() - self.began,
                bytes_out=records.message_bytes(content),
                epoch=None if kept is None else kept.epoch,
                contract=None if kept is None else kept.contract.hash(),
                round=self.asked.get("round"),
                attempt=self.asked.get("attempt"),
                result=audit.result_of(reply),
                query=queries.line_of(self.asked.get("query")),
                code=code,
            )
            audit.write(self.store, entry)
        except Exception:
            logger.error("the audit log could not be written")

    def refuse(self, message: Message, refusal: Refusal, error: BaseException) -> Message:
        """Answer with a code; the details stay here."""
        self.audit(RecordDict(), refusal.code)
        try:
            place = "no details"
            if self.store is not None:
                place = f"details in {log_failure(self.store, self.stage, error)}"
            # Texts of our own errors hold no secrets, by their rule; anybody else's may.
            what = str(error) if isinstance(error, FlheError) else type(error).__name__
            logger.error("%s at stage %r: %s (%s)", refusal.slug, self.stage[:16], what, place)
        except Exception:  # a full disk must not become the answer
            logger.error("%s, and its details could not be written", refusal.slug)
        return Message(Error(code=refusal.code, reason=refusal.slug), reply_to=message)


def _federation(record: ConfigRecord, context: Context) -> int:
    """Return the federation of a stage: this run's own, or one that this run resumes."""
    if "federation" not in record:
        return context.run_id
    name = records.field(record, "federation", bytes)
    if len(name) != 8:
        raise ProtocolError("a federation's id is 8 bytes")
    return int.from_bytes(name, "big")


def _simulated() -> bool:
    """Return whether this process is an actor of Flower's simulation, which is always local.

    In an app that uses Ray itself, this process is a driver or another kind of actor.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return ray.get_runtime_context().get_actor_id() is not None
