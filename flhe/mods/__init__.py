"""The Flower client side: `ClientApp(mods=[HEMod()])`, and codecs as mods of their own."""

from flhe.mods.codec_mods import Clip, CodecMod, Quantize, Sparsify
from flhe.mods.he_mod import HEMod

__all__ = ["Clip", "CodecMod", "HEMod", "Quantize", "Sparsify"]
