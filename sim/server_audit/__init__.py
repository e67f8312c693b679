"""`flhe audit-server`: experiments on what a server learns of one site, passive and lying."""
