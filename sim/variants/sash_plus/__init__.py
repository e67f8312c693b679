"""SASH+: seeds of SASH's masks, added up among a few neighbours by SecAgg+."""
