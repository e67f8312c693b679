"""The Flower client side."""
