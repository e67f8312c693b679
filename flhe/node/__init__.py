"""State of one site: key store, usage marks, policy and audit log."""
