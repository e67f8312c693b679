"""The coordinator's part: sites' cards in, one signed file of the federation out."""
