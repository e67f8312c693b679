"""A round as pure steps, without Flower."""
