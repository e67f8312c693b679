"""Models of FedML-HE's Tables 4 and 7: their sizes, and what the paper says of them.

Only a model's length matters to what is timed: vectors of so many values are drawn at random. Ratios
are made of the sizes and seconds here; the paper's own differ a little where it had more digits, and
for CNN's 16.66, which is that of Table 8's 105.72 MB.

Source: Jin et al., "FedML-HE", appendix D.2 (Table 4), D.6 (Table 7) and D.7 (Table 8).
"""

from __future__ import annotations

from dataclasses import dataclass

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
"""The paper's units: 4 bytes of each of CNN's 1,663,370 values are its 6.35 MB."""

COHORT = 3


@dataclass(frozen=True, slots=True)
class Model:
    """One row of Table 4.

    Parameters
    ----------
    name : str
        Its name there.
    values : int
        Parameters.
    he_s, plain_s : float
        Seconds of one aggregation, encrypted and not.
    he_bytes, plain_bytes : float
        One client's file, encrypted and not.
    """

    name: str
    values: int
    he_s: float
    plain_s: float
    he_bytes: float
    plain_bytes: float


LINEAR = Model("Linear", 101, 0.216, 0.001, 266.00 * KB, 1.10 * KB)
MLP = Model("MLP (2 FC)", 79_510, 0.586, 0.010, 5.20 * MB, 311.98 * KB)
LENET = Model("LeNet", 88_648, 0.619, 0.011, 5.97 * MB, 349.52 * KB)
CNN = Model("CNN (2 Conv + 2 FC)", 1_663_370, 2.456, 0.058, 103.15 * MB, 6.35 * MB)
RESNET_18 = Model("ResNet-18", 12_556_426, 19.950, 1.100, 796.70 * MB, 47.98 * MB)
VIT = Model("Vision Transformer", 86_389_248, 112.504, 17.739, 5.35 * GB, 329.62 * MB)

TABLE_4 = (LINEAR, MLP, LENET, CNN, RESNET_18)


@dataclass(frozen=True, slots=True)
class Selection:
    """One row of Table 7: of the Vision Transformer, so much is encrypted.

    Parameters
    ----------
    ratio : float
        p.
    seconds : float
        Of one aggregation, clear part included.
    nbytes : float
        One client's files, clear part included.
    """

    ratio: float
    seconds: float
    nbytes: float


TABLE_7 = (
    Selection(0.0, 17.739, 329.62 * MB),
    Selection(0.1, 30.874, 844.49 * MB),
    Selection(0.3, 50.284, 1.83 * GB),
    Selection(0.5, 70.167, 2.83 * GB),
    Selection(0.7, 88.904, 3.84 * GB),
    Selection(1.0, 112.504, 5.35 * GB),
)
