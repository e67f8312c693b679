"""Boosted trees over five sites, from sums of their gradient histograms."""
