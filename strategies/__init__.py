"""The Flower server side: strategies that aggregate ciphertext."""

from flhe.strategies.he_strategy import HEStrategy
from flhe.strategies.presets import flashe_fedavg

__all__ = ["HEStrategy", "flashe_fedavg"]
