"""Differentially private training on the patients of five hospitals, with the noise paid once."""
