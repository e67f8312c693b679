"""What an administrator sets a site up with: identities, rosters, backups, and a check of it all."""
