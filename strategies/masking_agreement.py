"""Run `flhe.keys.agreement.masking` over a Grid: the server only relays messages.

Two relays follow the update. CONSIST hands each survivor its shares and asks it to sign the set.
UNMASK presents t signatures and asks for the sum of its shares. The released result opens the sum
of exactly those updates, for its reader. If members hold shares of a key, CONSIST presents the sum,
and some of them decrypt it in part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from logging import INFO
from typing import Any, NoReturn, cast

from flwr.app import ConfigRecord, RecordDict

from flhe.errors import ProtocolError
from flhe.keys.agreement.answers import check_answer
from flhe.keys.agreement.circle import CONSIST
from flhe.mods import records
from flhe.schemes.base import Adder
from flhe.schemes.sealed import Sealed
from flhe.strategies.federation import Federation, Read
from flhe.strategies.options import RunSettings
from flhe.strategies.trouble import give_up, log


class MaskingAgreement:
    """One round's agreement on the sum of the survivors' seeds.

    Parameters
    ----------
    fed : Federation
        The server's state, with the shares that came with this attempt's updates.
    adder : Adder
        Adder of its ciphertexts.
    total : Sealed
        Their sum.
    settings : RunSettings
        Timeout of each relay, and retries of UNMASK; its answers do not change.
    """

    def __init__(self, fed: Federation, adder: Adder, total: Sealed, settings: RunSettings) -> None:
        self.fed, self.settings = fed, settings
        self.circle, self.slot = fed.parameters.circle, total.slot
        self.total, self.survivors = total, total.senders
        self.openers: set[int] | None = None
        """Ranks of the members that open it, all of them; None if any signers may."""
        if not fed.terms.scheme.per_sum_keys:
            shares = cast(Any, adder)
            size = shares.partial_bytes(total.length)
            self.circle = replace(self.circle, total=self.total.digest(), partial=size)
            self.openers = set(shares.openers(total.senders))
        ranks = {node: fed.parameters.epoch.rank(node) for node in fed.members if node >= 0}
        self.nodes = {node: rank for node, rank in ranks.items() if rank in total.senders}
        """Node id to rank, of the same members."""
        self.signatures: dict[int, bytes] = {}
        """Results of CONSIST, by rank."""
        self.answers: dict[int, bytes] = {}
        """Results of UNMASK, by rank."""
        self._named: dict[int, set[int]] = {}
        """Rank -> ranks of the members that could not decrypt its shares."""
        self._trouble: dict[int, str] = {}

    @property
    def need(self) -> int:
        """Number of answers that open the set."""
        return self.circle.thresholds.threshold if self.openers is None else len(self.openers)

    @property
    def able(self) -> set[int]:
        """Ranks of the members that may answer."""
        return set(self.signatures) if self.openers is None else self.openers

    def may_open(self, promised: Collection[int]) -> bool:
        """Return whether enough signed, and enough able members have not `promised` to refuse."""
        enough = len(self.signatures) >= self.circle.thresholds.threshold
        return enough and len(self.able - set(promised)) >= self.need

    def _accused(self) -> tuple[set[int], set[int]]:
        """Return ranks with bad shares at more members than may collude, and other accused ranks.

        All rounds of the run count together. A member that has accused more of the others than may
        collude lies: it is left out, and those are asked again whom it alone has accused.
        """
        bound, told = self.circle.colluders, self.fed.suspects.accused
        publics = self.fed.parameters.epoch.publics
        for rank, by in self._named.items():
            for accuser in by:
                told.setdefault(publics[accuser], set()).add(publics[rank])
        counts = Counter(accused for named in told.values() for accused in named)
        culprits = {accused for accused, count in counts.items() if count > bound}
        liars = {key for key, named in told.items() if len(named - culprits) > bound}
        for key in liars - self.fed.barred:
            self.fed.bar(key, "it accuses more members of bad shares than may collude")
            self.fed.barred -= told[key].difference(*(told[k] for k in told.keys() - liars))
        proven = {rank for rank in self._named if publics[rank] in culprits}
        by_honest = {r for r, by in self._named.items() if {publics[a] for a in by} - liars}
        return proven, by_honest - proven

    def sign(self) -> None:
        """Have the survivors sign their set; exclude members whose shares do not decrypt.

        Raises QuorumError: too few signed whose own shares decrypt everywhere. No member has seen
        enough signatures to answer for the set.
        """
        self.circle.check_set(self.survivors)
        self.signatures, need = self._consist(), self.circle.thresholds.threshold
        culprits, accused = self._accused()
        good = len(self.signatures.keys() - culprits - accused)
        if good < need:
            culprits |= accused  # without them there is a set that opens
        for rank in culprits & set(self.nodes.values()):
            self.fed.bar(self.fed.parameters.epoch.publics[rank], "its shares do not decrypt")
        self.fed.attempt.shares = {}
        self._enough("consist", good, need)

    def _consist(self) -> dict[int, bytes]:
        survivors, said = list(self.survivors), self.circle.statement(self.survivors)
        if self.openers is None:
            by_rank = {rank: self.fed.attempt.shares[node] for node, rank in self.nodes.items()}
            own = {rank: [by_rank[u][rank] for u in survivors] for rank in survivors}
            contents = {
                node: self._content("consist", survivors=survivors, shares=own[rank])
                for node, rank in self.nodes.items()
            }
        else:
            shown = self._content("consist", survivors=survivors, sum=self.total.header())
            shown[records.UPDATE] = records.from_sealed(self.total)
            contents = dict.fromkeys(self.nodes, shown)

        def read(node: int, answer: ConfigRecord, _: RecordDict) -> bytes:
            rank = self.nodes[node]
            if "bad" in answer:
                self._note_bad(rank, answer)
            signature: bytes = records.field(answer, "signature", bytes)
            header = self.circle.header(self.slot, CONSIST, rank)
            self.circle.verify(header, said, signature)
            return signature

        return self._ask("consist", contents, read)

    def unmask(self) -> list[bytes]:
        """Return the answers to UNMASK, for `flhe.keys.agreement.answers.combine`.

        Raises QuorumError: too few answered.
        """
        answers, need = self.answers, self.need
        signers = sorted(self.signatures)[: self.circle.thresholds.threshold]
        fields = {"signers": signers, "signatures": [self.signatures[rank] for rank in signers]}
        content = self._content("unmask", **fields)
        asked = [node for node, rank in self.nodes.items() if rank in self.able]

        def read(node: int, answer: ConfigRecord, _: RecordDict) -> bytes:
            encoded: bytes = records.field(answer, "answer", bytes)
            sealed = not self.fed.server_reads
            told = check_answer(self.circle, self.slot, self.survivors, encoded, sealed=sealed)
            if told[0] != self.nodes[node]:
                raise ProtocolError("it answers for another member")
            return encoded

        for turn in range(self.settings.retries + 1):
            silent = [node for node in asked if self.nodes[node] not in answers]
            if not silent or (turn > 0 and len(answers) >= need):
                break
            self._trouble.clear()
            answers |= self._ask("unmask", dict.fromkeys(silent, content), read)
        self._enough("unmask", len(answers), need)
        return [answers[rank] for rank in sorted(answers)]

    def _note_bad(self, rank: int, answer: ConfigRecord) -> NoReturn:
        bad = answer.get("bad")
        ranks = bad if isinstance(bad, list) else []
        named = sorted({r for r in ranks if type(r) is int and r in self.survivors})
        for other in named:
            self._named.setdefault(other, set()).add(rank)
        raise ProtocolError(f"the shares by ranks {', '.join(map(str, named))} do not open there")

    def _content(self, stage: str, **fields: Any) -> RecordDict:
        confirmed = self.fed.confirmed.issuperset(self.nodes)
        of = {"round": self.slot.round, "attempt": self.slot.attempt}
        return RecordDict({records.STAGE: self.fed.stage(stage, confirmed, **of, **fields)})

    def _ask(
        self, stage: str, contents: Mapping[int, RecordDict], read: Read[bytes]
    ) -> dict[int, bytes]:
        """Send each node its content; return `read`'s result of each answer by rank."""
        timeout = self.settings.stage_timeout
        told = self.fed.gather(stage, contents, timeout, self._trouble, read)
        return {self.nodes[node]: value for node, value in told.items()}

    def _enough(self, stage: str, count: int, need: int) -> None:
        if count < need:
            give_up(
                f"round {self.slot.round}: {count} of {len(self.nodes)} survivors answered stage "
                f"{stage!r}, {need} needed",
                self._trouble,
            )
        log(INFO, "%s: %d of %d survivors, %d needed", stage, count, len(self.nodes), need)
