"""Vouching: members sign which model they hold, before others take it from a checkpoint.

    voucher = an envelope of stage "vouch"; its payload is CBOR [epoch id, history, keyed digest]

A reader takes a checkpoint if more members vouch than may collude with the server. Then at least
one honest member holds this model. For a first model its maker's voucher is enough, because no
other member holds it yet.

Source: docs/protocol.md (Checkpoints).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flhe.errors import ProtocolError
from flhe.keys.agreement.messages import MAX_MESSAGE, Envelope, Header
from flhe.keys.identity import Identity
from flhe.training.epoch_sums import EpochSums
from flhe.wire.canonical import dumps


@dataclass(frozen=True, slots=True)
class Holding:
    """One model, as members of one epoch hold it; all of it is public.

    `members` are their public keys, by rank; the other fields describe the model. Its digest is the
    keyed one, 32 bytes.
    """

    sums: EpochSums
    members: Sequence[bytes]
    round: int
    history: bytes
    digest: bytes

    def sign(self, identity: Identity) -> bytes:
        """Return the voucher of a member that holds this model."""
        return Envelope.seal(identity, self._header(identity.public), self._payload()).to_bytes()

    def check(self, voucher: bytes, senders: Sequence[bytes]) -> bytes:
        """Return the public key of the one of `senders` that signed this voucher.

        Raises ProtocolError: another epoch, round, model or sender; AuthenticationError: it was
        changed.
        """
        envelope = Envelope.from_bytes(voucher, MAX_MESSAGE)
        envelope.verify(self._header(senders[0]).expected(), senders=senders)
        if envelope.payload != self._payload():
            raise ProtocolError("the voucher is for another model or epoch")
        return envelope.header.sender

    def check_all(self, vouchers: Iterable[bytes], sealer: int, need: int) -> None:
        """Refuse a checkpoint by the member of rank `sealer` without enough vouchers.

        At least `need` members must vouch, the sealer among them. Raises as `check`; ProtocolError:
        too few.
        """
        signers = {self.check(voucher, self.members) for voucher in vouchers}
        if len(signers) < need or sealer not in map(list(self.members).index, signers):
            raise ProtocolError(
                f"{need} members must vouch for the checkpoint of round {self.round}, its sealer "
                f"among them; {len(signers)} do: ask more members that hold its model"
            )

    def _payload(self) -> bytes:
        return dumps([self.sums.epoch, self.history, self.digest])

    def _header(self, sender: bytes) -> Header:
        sums = self.sums
        return Header(
            roster_hash=sums.roster_hash,
            run_id=sums.run_id,
            epoch=sums.number,
            round=self.round,
            stage="vouch",
            sender=sender,
            policy_hash=sums.contract,
        )
