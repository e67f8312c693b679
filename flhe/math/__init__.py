"""Keystreams, packing kernels and the algebra under the schemes."""

COLUMNS = 256
"""Columns of a packed block: whole vector registers, few row changes, and a block stays in cache. It
is part of the wire format, and stands here because who needs only its value must not load numba."""
