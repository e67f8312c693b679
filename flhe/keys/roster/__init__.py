"""Members of a federation, and the terms that they agree on beforehand."""
