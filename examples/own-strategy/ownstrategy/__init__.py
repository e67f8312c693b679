"""A strategy that masks in its own way, with masking keys that its nodes agree on."""
