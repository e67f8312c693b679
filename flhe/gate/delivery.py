"""Delivery of one reply: the verdict, then to the SuperLink what may leave, written anew.

The gate writes the message itself: metadata from the request, an error's text from the code. Content
keeps its objects, which the verdict covers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from flwr.proto.error_pb2 import Error
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Message, ObjectTree, PushObjectRequest, PushObjectResponse
from flwr.proto.recorddict_pb2 import RecordDict

from flhe.errors import AuthenticationError, FlheError, logger
from flhe.gate.judge import REASONS, Verdict, judge, reply_metadata, stopped
from flhe.gate.ledger import Ledger
from flhe.gate.objects import object_id, write
from flhe.gate.policy import GatePolicy
from flhe.gate.spool import Waiting
from flhe.gate.upstream import Answer, Upstream
from flhe.node import audit
from flhe.node.store import Store
from flhe.wire import codes

Headers = Callable[[], Mapping[str, str]]
"""The newest headers of the SuperNode: their signature holds for some minutes."""

AT_ONCE = 4
"""Objects of a reply that are sent at a time; Flower's own client sends more."""
DONE = Answer(200)
REJECTED = Answer(403)
"""The SuperNode drops the reply, and goes on."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """The way up of replies: policy, what came down, the SuperLink, and the gate's directory."""

    policy: GatePolicy
    ledger: Ledger
    upstream: Upstream
    store: Store

    def deliver(self, waiting: Waiting, headers: Headers) -> Answer:
        """Judge a reply and send what may leave; return the SuperNode's answer to its last object."""
        said = waiting.request.messages_list[0]
        asked = self.ledger.asked(said.metadata.reply_to_message_id)
        began = time.monotonic()
        if asked is None or self.ledger.knows("answered", asked.message_id):
            self._log(waiting, stopped("unasked"), began)
            return REJECTED
        if waiting.size > self.policy.max_bytes:
            verdict = stopped("size")
        else:
            tree = waiting.request.message_object_trees[0]
            verdict = judge(self.policy, asked, said, tree, waiting.read, waiting.created)
        message = Message(metadata=reply_metadata(asked, waiting.created))
        if verdict.tree is None:
            message.error.CopyFrom(
                Error(code=verdict.code, reason=codes.reason_of(verdict.code) or "")
            )
        answer = self._send(waiting, message, verdict, headers)
        taken = answer.status == DONE.status
        if taken:
            self.ledger.note_answered(asked.message_id)
        if not answer.again:
            refused = stopped("unasked", f"(status {answer.status})")
            final = verdict if taken or verdict.reason else refused
            self._log(waiting, final, began)
        return answer

    def _send(
        self, waiting: Waiting, message: Message, verdict: Verdict, headers: Headers
    ) -> Answer:
        node = waiting.request.node
        content = None if verdict.tree is None else verdict.tree.content
        children = () if content is None else (content,)
        ids = tuple(part.object_id for part in children)
        root = write("Message", ids, message.SerializeToString(deterministic=True))
        named = object_id(root)
        announced = Message()
        announced.CopyFrom(message)
        announced.metadata.message_id = named
        if verdict.tree is not None:
            announced.content.CopyFrom(RecordDict())
        request = PushMessagesRequest(
            node=node,
            messages_list=[announced],
            message_object_trees=[ObjectTree(object_id=named, children=children)],
        )
        resumed = waiting.session is not None
        if not resumed:
            answer = self._post("push-messages", request, headers)
            if answer.status != DONE.status:
                return answer
            response = PushMessagesResponse.FromString(answer.body)
            if named not in response.objects_to_push:
                return REJECTED
            waiting.begin(response.session_id, response.objects_to_push)
        below = () if verdict.tree is None else verdict.tree.below
        taken: list[str] = []

        def push(part: str) -> Answer:
            pushed = PushObjectRequest(
                node=node,
                run_id=message.metadata.run_id,
                object_id=part,
                object_content=root if part == named else waiting.read(part),
                session_id=waiting.session or "",
            )
            answer = self._post("push-object", pushed, headers)
            if answer.status != DONE.status:
                return answer
            # The SuperLink refuses an object that it has, as after an answer that was lost.
            if PushObjectResponse.FromString(answer.body).stored:
                taken.append(part)
            elif not resumed:
                return Answer(502)
            return DONE

        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = pool.map(push, (p for p in (*below, named) if p in waiting.wanted))
            failed = next((answer for answer in answers if answer.status != DONE.status), DONE)
        if resumed and not taken and failed is DONE:
            logger.warning(
                "the SuperLink took nothing more of a resumed reply: it was whole there, or its "
                "session had ended and the round goes on without this site"
            )
        return failed

    def _post(
        self, name: str, request: PushMessagesRequest | PushObjectRequest, headers: Headers
    ) -> Answer:
        return self.upstream.post(name, request.SerializeToString(deterministic=True), headers())

    def _log(self, waiting: Waiting, verdict: Verdict, began: float) -> None:
        """Write the administrator's lines. A failure to write them is logged, and stops nothing."""
        try:
            entry = audit.Entry(
                run=waiting.request.messages_list[0].metadata.run_id,
                stage="gate",
                answer=audit.REFUSED if verdict.reason else "passed",
                seconds=time.monotonic() - began,
                bytes_out=0 if verdict.tree is None else waiting.size,
                code=codes.GATE.code if verdict.reason else None,
            )
            audit.write(self.store, entry)
            if verdict.reason:
                why = f"{verdict.reason}: {REASONS[verdict.reason]} {verdict.detail}".rstrip()
                logger.warning("a reply was stopped: %s", why)
                audit.log_failure(self.store, "gate", AuthenticationError(why))
        except FlheError:
            logger.error("the gate's log could not be written")
