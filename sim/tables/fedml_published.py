"""What FedML-HE's paper says in its Tables 4 to 8, beside `flhe_lab.bench.fedml_models`.

Sizes are taken for multiples of 2**20 bytes. Llama 2's 13.5 GB in clear look like two bytes, of 10**9,
for each of its values, where every other model has four; the paper's own ratio takes them alike.

Source: Jin et al., "FedML-HE", appendix D.
"""

from __future__ import annotations

from dataclasses import dataclass

from flhe_lab.bench.fedml_models import (
    CNN,
    GB,
    KB,
    LENET,
    LINEAR,
    MB,
    MLP,
    RESNET_18,
    VIT,
    Model,
)

TIME_SERIES = Model("TimeSeries Transformer", 5_609, 2.792, 0.233, 532.00 * KB, 52.65 * KB)
RNN = Model("RNN (2 LSTM + 1 FC)", 822_570, 1.195, 0.013, 52.47 * MB, 3.14 * MB)
MOBILENET = Model("MobileNet", 3_315_428, 9.481, 1.031, 210.41 * MB, 12.79 * MB)
RESNET_34 = Model("ResNet-34", 21_797_672, 37.555, 2.925, 1.35 * GB, 83.28 * MB)
RESNET_50 = Model("ResNet-50", 25_557_032, 46.672, 5.379, 1.58 * GB, 97.79 * MB)
GROUP_VIT = Model("GroupViT", 55_726_609, 86.098, 19.921, 3.45 * GB, 212.83 * MB)
BERT = Model("BERT", 109_482_240, 136.914, 19.674, 6.78 * GB, 417.72 * MB)
LLAMA = Model("Llama 2", 6_740_000_000, 13067.154, 2423.976, 417.43 * GB, 13.5 * GB)

MODELS = (
    LINEAR,
    TIME_SERIES,
    MLP,
    LENET,
    RNN,
    CNN,
    MOBILENET,
    RESNET_18,
    RESNET_34,
    RESNET_50,
    GROUP_VIT,
    VIT,
    BERT,
    LLAMA,
)
"""Table 4, in its order."""


@dataclass(frozen=True, slots=True)
class Efficient:
    """One row of Table 5: fewer values, all of them encrypted.

    Parameters
    ----------
    model : Model
        What is trained.
    how : str
        What makes it fewer.
    values : int
        How many are left: told for the first row; for BERT, LoRA of rank 8 on the query and value
        matrices of its 12 layers, which is that method's own choice (Hu et al., 2021).
    nbytes : float
        The paper's "Opt".
    """

    model: Model
    how: str
    values: int
    nbytes: float


TOP_K = 1_000_000
LORA = 12 * 2 * 2 * 768 * 8
"""Layers, matrices of each, factors, width, rank."""

TABLE_5 = (
    Efficient(RESNET_18, "1,000,000 values", TOP_K, 19.03 * MB),
    Efficient(BERT, "LoRA adapters", LORA, 16.66 * MB),
)


@dataclass(frozen=True, slots=True)
class Parameters:
    """One row of Table 6: the CNN under other parameters.

    Parameters
    ----------
    batch : int
        Values in a ciphertext.
    scale : int
        Scaling bits.
    seconds, nbytes : float
        Of one aggregation; one client's files.
    change : float
        Of test accuracy, in percent, to the best model in clear.
    """

    batch: int
    scale: int
    seconds: float
    nbytes: float
    change: float


BATCHES, SCALES = (1024, 2048, 4096), (14, 20, 33, 40, 52)

_TABLE_6 = (
    (407.47, ((8.834, -0.28), (7.524, -0.21), (7.536, 0), (7.765, 0), (7.827, 0))),
    (204.50, ((3.449, -0.06), (3.414, -0.13), (3.499, 0), (3.621, 0), (3.676, 0))),
    (103.15, ((1.837, -1.85), (1.819, 0.32), (1.886, 0), (1.998, 0), (1.926, 0))),
)
TABLE_6 = tuple(
    Parameters(batch, scale, seconds, size * MB, change)
    for batch, (size, rows) in zip(BATCHES, _TABLE_6, strict=True)
    for scale, (seconds, change) in zip(SCALES, rows, strict=True)
)


@dataclass(frozen=True, slots=True)
class Framework:
    """One row of Table 8: the CNN, three clients.

    Parameters
    ----------
    name, core : str
        The framework, what it encrypts with.
    seconds, nbytes : float
        Of one aggregation; one client's files.
    """

    name: str
    core: str
    seconds: float
    nbytes: float


TABLE_8 = (
    Framework("FedML-HE", "PALISADE", 2.456, 105.72 * MB),
    Framework("FedML-HE, optimized", "PALISADE", 0.874, 16.37 * MB),
    Framework("FedML-HE", "TenSEAL", 3.989, 129.75 * MB),
    Framework("NVIDIA FLARE", "TenSEAL", 2.826, 129.75 * MB),
    Framework("IBMFL", "HELayers", 3.955, 86.58 * MB),
    Framework("plain", "", 0.058, 6.35 * MB),
)
