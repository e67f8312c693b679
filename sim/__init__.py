"""Benchmarks, cost models and the papers' tables."""
