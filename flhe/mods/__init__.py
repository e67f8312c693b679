"""The Flower client side: `ClientApp(mods=[HEMod()])`, and mods for one task each."""

from flhe.mods.app import bounded
from flhe.mods.codec_mods import Clip, CodecMod, Quantize, Sparsify
from flhe.mods.he_mod import HEMod, query_app
from flhe.mods.masking_key_mod import MaskingKeyMod, masking_key

__all__ = [
    "Clip",
    "CodecMod",
    "HEMod",
    "MaskingKeyMod",
    "Quantize",
    "Sparsify",
    "bounded",
    "masking_key",
    "query_app",
]
