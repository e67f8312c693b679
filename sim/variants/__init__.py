"""Contenders that flhe measures and does not ship: SecAgg, SASH+, threshold decryption."""
