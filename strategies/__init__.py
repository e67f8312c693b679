"""The Flower server side: strategies that aggregate ciphertext."""

from flhe.strategies.he_strategy import HEStrategy
from flhe.strategies.presets import (
    batchcrypt_fedavg,
    batchcrypt_fedsgd,
    esafl_fedavg,
    esafl_fedsgd,
    fedml_he_fedavg,
    flashe_fedavg,
    sash_fedavg,
)
from flhe.strategies.sealed_result import save_sealed

__all__ = [
    "HEStrategy",
    "batchcrypt_fedavg",
    "batchcrypt_fedsgd",
    "esafl_fedavg",
    "esafl_fedsgd",
    "fedml_he_fedavg",
    "flashe_fedavg",
    "sash_fedavg",
    "save_sealed",
]
