"""Who shares which secret with whom, agreed through a relay that nobody trusts."""
