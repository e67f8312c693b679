"""Secure sums: contribution, collection and opening, without Flower and without a disk."""
