"""The Flower server side: strategies that aggregate ciphertext."""

from flhe.coding.update import update_codec
from flhe.strategies.aliases import (
    BatchCryptFedAvg,
    EsaflFedAvg,
    FedmlHeFedAvg,
    FlasheFedAvg,
    SashFedAvg,
    SchemeFedAvg,
)
from flhe.strategies.he_strategy import HEStrategy
from flhe.strategies.masking_keys import MaskingKeyAgreement
from flhe.strategies.private import dp_fedavg, dp_fedsgd
from flhe.strategies.sealed_result import save_sealed
from flhe.strategies.secure_sum import SecureSum, Total

__all__ = [
    "BatchCryptFedAvg",
    "EsaflFedAvg",
    "FedmlHeFedAvg",
    "FlasheFedAvg",
    "HEStrategy",
    "MaskingKeyAgreement",
    "SashFedAvg",
    "SchemeFedAvg",
    "SecureSum",
    "Total",
    "dp_fedavg",
    "dp_fedsgd",
    "save_sealed",
    "update_codec",
]
