"""The Flower client side: `ClientApp(mods=[HEMod()])`."""

from flhe.mods.he_mod import HEMod

__all__ = ["HEMod"]
