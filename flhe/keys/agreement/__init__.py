"""How members agree on keys through a relay that they do not trust."""
