"""SecureSum: one sum, for the server and for every member of an epoch.

    contribute    a member's vector -> ciphertext       tag, claim, encrypt
    check_part    one member's ciphertext               its sender, and its sum
    open          the sum of ciphertexts -> integers    check, record, decrypt, verify tags

Every member contributes one vector; the total of the agreed contributors is opened once. The order
matters: a claim is on disk before encryption, and an opening is recorded before decryption.

Opening fails if a scheme's bounds do not hold, the number of contributions is wrong, or a tag does
not match. All failures raise one class of error. So a relay that alters a sum learns only that it
is refused, not how far off it was. The member's own log names the failed check.

Source: docs/protocol.md (Tags); `flhe.schemes.sum_mac`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from flhe.coding.base import COUNT, Plain
from flhe.coding.quantize import Quantize
from flhe.coding.support import Support
from flhe.errors import AlteredError, DriftError, ProtocolError, QuorumError
from flhe.keys.agreement.messages import MAX_MESSAGE, Envelope, Header
from flhe.keys.agreement.states import Epoch
from flhe.keys.identity import Identity
from flhe.keys.roles import opener_for
from flhe.schemes.base import Adder, Sealer
from flhe.schemes.sealed import Sealed, Slot, check_senders
from flhe.schemes.sum_mac import SumMac

Record = Callable[[Slot, bytes], None]
"""(slot, digest) -> None once on disk; ReuseError for another sum of that round and purpose."""

TAGS = ("first tag", "second tag")


@dataclass(frozen=True, slots=True)
class SecureSum:
    """The public facts of a sum before any contribution.

    Parameters
    ----------
    slot : Slot
        Run, roster, epoch, round, attempt, purpose, and the history that it starts from.
    adder : Adder
        Of its epoch's scheme and cohort.
    number : int
        Of the epoch.
    policy_hash : bytes
        Of the terms, 32 bytes.
    length : int
        Integers in an encrypted contribution; for a sparse one, those after its values.
    values : int
        Values in the opened sum, before the extras.
    bits : int
        Of one value, sign included.
    sparse : bool
        True if each contribution holds only some of the values.
    tagged : bool
        True if contributions end with tags, by which members verify the sum.
    floats : int
        The model's values, the domain of tags and supports.
    """

    slot: Slot
    adder: Adder
    number: int
    policy_hash: bytes
    length: int
    values: int
    bits: int
    sparse: bool
    tagged: bool
    floats: int

    # --- a member ---

    def contribute(
        self,
        epoch: Epoch,
        sealer: Sealer,
        encoded: Plain,
        claim: Callable[[], None],
        mode: str = "",
        support: Support | None = None,
        *,
        threads: int = 1,
    ) -> Sealed:
        """Encrypt an encoded vector, with tags; `claim` is called first and must reach the disk."""
        if (tags := self._tags(epoch, threads)) is not None:
            bound = b"" if support is None else support.digest()
            encoded = tags.tagged(encoded, epoch.rank, self.bits, bound)
        claim()
        return sealer.encrypt(encoded, self.slot, mode=mode, support=support)

    def sign(self, identity: Identity, sealed: Sealed) -> bytes:
        """Return the envelope that travels beside a contribution, over its digest."""
        header = self._header(identity.public)
        return Envelope.seal(identity, header, sealed.digest()).to_bytes()

    # --- the server ---

    def check_part(
        self,
        part: Sealed,
        envelope: bytes,
        rank: int,
        sender: bytes,
        mode: str,
    ) -> None:
        """Refuse a ciphertext that is not the contribution of the member of `rank`.

        `sender` is that member's public key, `envelope` its signed message, `mode` the announced
        mode of the scheme.

        Raises DriftError: it is for another history of the model; ProtocolError: it is for another
        sum, another member's, or of another form or length.
        """
        slot = self.slot
        if replace(part.slot, history=slot.history) != slot:
            raise ProtocolError("the update belongs to another round, epoch or parameter set")
        if part.slot.history != slot.history:
            raise DriftError("its model has drifted: it has seen another initial model or sum")
        if part.senders != (rank,):
            raise ProtocolError("the update says that it is another member's")
        if bool(part.supports) != self.sparse:
            raise ProtocolError("the update is sparse, or should be")
        if part.mode != mode:
            raise ProtocolError("the update is masked in another mode than was announced")
        if part.length != self._lanes(part):
            raise ProtocolError("the update has another length than the model")
        signed = Envelope.from_bytes(envelope, MAX_MESSAGE)
        if signed.payload != part.digest():
            raise ProtocolError("the update was signed for another payload")
        signed.verify(self._header(sender).expected(), senders=[sender])

    # --- the reader ---

    def check(self, total: Sealed, need: int) -> None:
        """Refuse another sum, or one of fewer than `need` senders.

        Raises ProtocolError: another slot, scheme, form or length; QuorumError: too few senders.
        """
        round_ = total.slot.round
        if total.slot != self.slot:
            raise ProtocolError(
                f"the sum of round {round_} belongs to another run, epoch, parameter set, or to "
                "a model with another history or other weights, or its senders had other terms"
            )
        if total.scheme != self.adder.name:
            raise ProtocolError(f"the sum of round {round_} is of another scheme")
        self.adder.check_mode(total.mode)
        check_senders(total.senders, self.adder.cohort)
        if total.supports and total.supports[0].length != self.floats:
            raise ProtocolError(f"the sum of round {round_} is of another model")
        if bool(total.supports) != self.sparse:
            raise ProtocolError(f"the sum of round {round_} is sparse, or should be")
        if total.length != self._lanes(total):
            raise ProtocolError(f"the sum of round {round_} has another length than the model")
        if total.data.size != self.adder.nbytes(total.length):
            raise ProtocolError(f"the sum of round {round_} was cut short or extended")
        if len(total.senders) < need:
            raise QuorumError(
                f"the sum of round {round_} has {len(total.senders)} senders, this roster "
                f"opens none of fewer than {need}"
            )

    def open(
        self,
        epoch: Epoch,
        total: Sealed,
        record: Record,
        release: Sequence[bytes] = (),
        *,
        threads: int = 1,
    ) -> NDArray[Any]:
        """Return the integers in a checked sum: signed values, then extras, without the tags.

        `record` is called before decryption. `release` is what the senders' masking-key agreement
        released, if the scheme has one.

        Raises ReuseError: another sum of this round and purpose was opened before; AlteredError: it
        is not the sum of its senders' vectors.
        """
        record(self.slot, total.digest())
        opener = opener_for(self.adder, epoch, total, release, threads=threads)
        try:
            lanes: NDArray[Any] = opener.decrypt(total)
        except QuorumError:
            raise  # too little was released: no evidence about the sum
        except ProtocolError as error:
            raise _altered(total, str(error)) from None
        if (tags := self._tags(epoch, threads)) is None:
            return lanes
        values = self._sent(total) if self.sparse else self.values
        coords = total.coords if total.supports else None
        whole = Plain(lanes[:values], lanes[values:], coords)
        bounds = [support.digest() for support in total.supports]
        plain, fits = tags.matching(whole, total.senders, self.bits, bounds)
        if not all(fits):
            what = [name for name, right in zip(TAGS, fits, strict=True) if not right]
            if not _counts(plain, len(total.senders), self.bits):
                what.insert(0, "count of contributions")
            raise _altered(total, "what does not match: " + ", ".join(what))
        return lanes[: values + plain.extras.size]

    # --- derived by both sides ---

    def _lanes(self, sealed: Sealed) -> int:
        """Return the number of integers in a ciphertext of such senders."""
        return self.length + self._sent(sealed)

    def _sent(self, sealed: Sealed) -> int:
        """Return the number of coordinates in a sparse sum."""
        return sealed.coords.size if sealed.supports else 0

    def _tags(self, epoch: Epoch, threads: int) -> SumMac | None:
        if not self.tagged:
            return None
        return SumMac(epoch.group_key, self.slot, self.floats, threads)

    def _header(self, sender: bytes) -> Header:
        slot = self.slot
        return Header.in_slot(slot, self.number, slot.purpose, sender, self.policy_hash)


def _counts(plain: Plain, senders: int, bits: int) -> bool:
    """Return whether a sum's count slot matches its number of senders."""
    quantize = Quantize(bits)
    digits = plain.extras[COUNT * quantize.limbs : (COUNT + 1) * quantize.limbs]
    return sum(int(d) << ((bits - 1) * k) for k, d in enumerate(digits)) == senders


def _altered(total: Sealed, what: str) -> AlteredError:
    return AlteredError(
        f"the sum of round {total.slot.round} does not match what its {len(total.senders)} senders "
        f"encrypted ({what}): a contribution was left out, counted twice, changed or added in "
        "transit; the round is refused"
    )
