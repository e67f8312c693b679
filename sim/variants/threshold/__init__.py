"""Threshold decryption: a key that nobody holds, of which any t parties open a sum."""
