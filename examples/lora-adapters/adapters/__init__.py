"""Low-rank adapters of a small transformer, trained on private notes: only adapters travel."""
