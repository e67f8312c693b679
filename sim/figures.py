"""For a while: the old names of `flhe.sim.bench.figures`."""

from flhe.sim.bench.figures import COLOURS, DPI, LOOK, check, look, new, save, save_data

__all__ = ["COLOURS", "DPI", "LOOK", "check", "look", "new", "save", "save_data"]
