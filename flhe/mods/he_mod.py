"""HEMod: the client mod that encrypts what the app trained.

Outermost in the app's list of mods. Stages of flhe travel as ordinary `train` and `evaluate` messages
with an `flhe.stage` record; key agreement is answered here without calling the app, and around
training the app sees ordinary arrays and never the ciphertext. A message without that record is a
plain one: refused, unless the node's own policy allows unencrypted runs.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from flwr.app import Context, Error, Message

from flhe import records
from flhe.errors import FlheError, PolicyError, ProtocolError
from flhe.keys.store import Store
from flhe.mods import stages
from flhe.mods.codes import APP, Refusal, refusal_for
from flhe.mods.node import Node, log_failure, open_store
from flhe.policy import Policy

logger = logging.getLogger("flhe")

Next = Callable[[Message, Context], Message]


class HEMod:
    """Encrypts updates; the node's own config says with which keys and under which policy.

    Put it first: `ClientApp(mods=[HEMod()])`. It holds no state of its own: what must last from one
    message to the next is in the node's state directory, whose path alone is recorded in the Context.
    """

    def __call__(self, message: Message, context: Context, call_next: Next) -> Message:
        """Answer one message. Never raises: Flower would send the exception's text to the server."""
        opened: list[Store] = []
        stage = "message"
        try:
            record = records.find_config(message.content, records.STAGE)
            stage = str(record.get("stage")) if record else "plain"
            return self._answer(message, context, call_next, opened)
        except stages.AppError as error:
            return _refuse(message, APP, opened, stage, error.__cause__ or error)
        except Exception as error:  # whatever it was, its text must not travel
            return _refuse(message, refusal_for(error), opened, stage, error)

    def _answer(
        self, message: Message, context: Context, call_next: Next, opened: list[Store]
    ) -> Message:
        policy = Policy.of_node(
            context.node_config,
            run_id=context.run_id,
            node_id=context.node_id,
            simulated=_simulated(),
            plain_asked=_plain_asked(context),
        )
        record = records.find_config(message.content, records.STAGE)
        if record is None:
            policy.check_scheme("plain")
        elif records.field(record, "v", int) != 1:
            raise ProtocolError("a stage of another version of flhe: upgrade both sides")
        store = open_store(policy)
        opened.append(store)
        context.state["flhe"] = records.home_record(policy.home)
        identity = store.identity()
        with store.lock(name=f"lock-{context.run_id}"):
            node = Node(policy, store, identity, context.run_id)
            if record is None:
                return _plain(node, message, context, call_next)
            name = records.field(record, "stage", str)
            step = stages.STAGES.get((message.metadata.message_type, name))
            if step is None:
                raise ProtocolError("a stage that this version of flhe does not know")
            content = step(node, record, message, stages.App(context, call_next))
            return Message(content, reply_to=message)


def _plain(node: Node, message: Message, context: Context, call_next: Next) -> Message:
    """Pass a plain message on, where policy allows it and the run was plain from the start."""
    if node.encrypted_before():
        raise PolicyError("the server asked for plaintext in the middle of an encrypted run")
    logger.warning("this run is NOT encrypted: this node's policy allows scheme 'plain'")
    try:
        return call_next(message, context)
    except Exception as error:
        raise stages.AppError from error


def _refuse(
    message: Message, refusal: Refusal, opened: list[Store], stage: str, error: BaseException
) -> Message:
    try:
        for store in opened:  # only a directory that was found sound is written to
            log_failure(store, stage, error)
        # Texts of our own errors hold no secrets, by their rule; anybody else's may, and stay there.
        what = str(error) if isinstance(error, FlheError) else type(error).__name__
        place = ", ".join(f"details in {store.log_path('errors.log')}" for store in opened)
        logger.error(
            "%s at stage %r: %s (%s)", refusal.slug, stage[:16], what, place or "no details"
        )
    except Exception:  # a full disk must not become the answer
        logger.error("%s, and its details could not be written", refusal.slug)
    return Message(Error(code=refusal.code, reason=refusal.slug), reply_to=message)


def _plain_asked(context: Context) -> bool:
    """Whether the run says of itself that it is a plain one; heeded in simulations only."""
    config = context.run_config
    return config.get("scheme") == "plain" or config.get("flhe-plain") is True


def _simulated() -> bool:
    """Whether this process is an actor of Flower's simulation, which is always local.

    An app that uses Ray for itself is a driver, or runs in actors that are not ours to answer in.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return ray.get_runtime_context().get_actor_id() is not None
