"""`flhe rehearse`: a real deployment on this machine, and a search of its traffic for secrets."""
