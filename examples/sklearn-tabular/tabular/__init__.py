"""Logistic regression on a table that several sites hold parts of, encrypted."""
