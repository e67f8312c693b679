"""Keystreams, packing kernels and the algebra under the schemes."""

COLUMNS = 256
"""Columns of a packed block: whole vector registers, few row changes, and a block stays in cache.
It is part of the wire format, and defined here so that reading it does not load numba."""

LANES, LIMB_BITS = 8, 52
"""Numbers that AVX-512 IFMA multiplies at once, and bits of their limbs; here for the same
reason."""
BLOCK = 10
"""Limbs of a block: primes of 1024, 1536 and 2048 bits take 2, 3 and 4 of them."""
