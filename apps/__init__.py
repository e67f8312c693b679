"""The Flower app that trains under encryption."""
