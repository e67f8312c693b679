"""The Flower client side: `ClientApp(mods=[HEMod()])`, and codecs as mods of their own."""

from flhe.mods.app import bounded
from flhe.mods.codec_mods import Clip, CodecMod, Quantize, Sparsify
from flhe.mods.he_mod import HEMod, query_app

__all__ = ["Clip", "CodecMod", "HEMod", "Quantize", "Sparsify", "bounded", "query_app"]
