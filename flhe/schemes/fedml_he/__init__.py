"""FedML-HE: CKKS under a shared key."""
