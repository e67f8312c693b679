"""Federated training of a small PyTorch network, encrypted."""
