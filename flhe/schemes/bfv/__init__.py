"""BFV: integers in the slots of a lattice scheme, by TenSEAL."""
