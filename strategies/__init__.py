"""The Flower server side: strategies that aggregate ciphertext."""
