"""Homomorphic encryption and secure aggregation for Flower federations."""
