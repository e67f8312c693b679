"""What FedML-HE's paper says in its Tables 4 to 8: its appendix D.

Only a model's length matters to what is timed: vectors of so many values are drawn at random. Ratios
are made of the sizes and seconds here; the paper's own differ a little where it had more digits, and
for CNN's 16.66, which is that of Table 8's 105.72 MB.
"""

from __future__ import annotations

from dataclasses import dataclass

from flhe_lab.papers.published import rows

MB = 1 << 20
"""The paper's."""

COHORT = 3


@dataclass(frozen=True, slots=True)
class Model:
    """One row of Table 4."""

    name: str  # Its name there
    values: int  # Parameters
    he_s: float  # Seconds of one aggregation, encrypted
    plain_s: float  # The same, in clear
    he_bytes: float  # One client's file, encrypted
    plain_bytes: float  # The same, in clear


@dataclass(frozen=True, slots=True)
class Efficient:
    """One row of Table 5: fewer values, all of them encrypted; the paper's "Opt"."""

    model: str
    values: int
    nbytes: float


@dataclass(frozen=True, slots=True)
class Parameters:
    """One row of Table 6: the CNN under other parameters."""

    batch: int  # Values in a ciphertext
    scale: int  # Scaling bits
    seconds: float  # Of one aggregation
    nbytes: float  # One client's files
    change: float  # Of test accuracy, in percent, to the best model in clear


@dataclass(frozen=True, slots=True)
class Aggregated:
    """One row of Table 7, by the share that is encrypted, or of Table 8, by framework."""

    what: float | str
    seconds: float
    nbytes: float


MODELS = rows("fedml", "table_4", Model)
_NAMED = {model.name.partition(" (")[0]: model for model in MODELS}
CNN, MOBILENET, RESNET_18, RESNET_50, VIT, BERT = (
    _NAMED[name]
    for name in ("CNN", "MobileNet", "ResNet-18", "ResNet-50", "Vision Transformer", "BERT")
)
TABLE_5 = {_NAMED[row.model]: row for row in rows("fedml", "table_5", Efficient)}
TOP_K = TABLE_5[RESNET_18].values
TABLE_6 = rows("fedml", "table_6", Parameters)
BATCHES, SCALES = ([*dict.fromkeys(getattr(r, by) for r in TABLE_6)] for by in ("batch", "scale"))
TABLE_7 = {float(row.what): row for row in rows("fedml", "table_7", Aggregated)}
TABLE_8 = {str(row.what): row for row in rows("fedml", "table_8", Aggregated)}
