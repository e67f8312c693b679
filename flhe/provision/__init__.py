"""Set-up of a site by its administrator: identities, rosters, backups, and a check of it all."""
