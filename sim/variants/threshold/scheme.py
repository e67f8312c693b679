"""ThresholdCkks: the scheme of FedML-HE's Appendix B, for federations that want to measure it.

    [project.entry-points."flhe.schemes"]
    threshold-ckks = "flhe_lab.variants.threshold.scheme:ThresholdCkks"

No node that is deployed runs it unless its config names it: one member that lies has the key after a
round or a few (docs/threshold.md). SASH with `unmask=clients`, or ESAFL, is what stands against that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flhe.errors import ConfigError
from flhe.schemes.base import Adder, Agreement, Scheme
from flhe.wire.record import Form


@dataclass(frozen=True, slots=True)
class ThresholdCkks(Scheme):
    """Threshold encryption over a ring: one public key, and t members to open a sum.

    Values are exact integers, and noise lies above them, where CKKS puts it into the lowest bits: what
    is opened is the sum, and no approximation of it.

    So many members as `threshold` says open a sum together, 2 or more; 0 for a majority of all. Fewer
    learn nothing.
    """

    FORM = Form("threshold CKKS", error=ConfigError)
    name: ClassVar[str] = "threshold-ckks"
    title: ClassVar[str] = "threshold CKKS"
    agreement: ClassVar[Agreement] = "shares"
    dense: ClassVar[str] = "slots hold dense vectors only"
    slow: ClassVar[bool] = True
    deployed: ClassVar[bool] = False

    threshold: int = 0

    def _validate(self) -> None:
        if type(self.threshold) is not int or self.threshold < 0 or self.threshold == 1:
            raise ConfigError(
                f"threshold CKKS: threshold={self.threshold!r}, must be 2 or more, or 0 for a "
                "majority; with 1, each member alone opens everything"
            )

    @property
    def security(self) -> int:
        """That of the rings that it is measured on; see `sizes`."""
        return 128

    def summary(self) -> str:
        """Who opens."""
        who = str(self.threshold) if self.threshold else "a majority"
        return f"threshold CKKS: {who} of the members open a sum"

    def threshold_of(self, cohort: int) -> int:
        """Those that were asked for, or a majority."""
        return self.threshold or cohort // 2 + 1

    def adder(self, cohort: int, bits: int | None = None, public: bytes = b"") -> Adder:
        """The adder; `public` is what members call the public key. See `Scheme.adder`."""
        from flhe_lab.variants.threshold.adder import ThresholdRlwe

        threshold = self.threshold_of(cohort)
        return ThresholdRlwe(cohort, threshold, self.or_default(bits), key_id=public, scheme=self)
