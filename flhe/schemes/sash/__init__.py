"""SASH: seed-homomorphic masks."""
