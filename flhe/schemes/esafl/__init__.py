"""ESAFL: lattice encryption, a key for each member."""
