"""Keystreams, packing kernels and the algebra under the schemes."""
