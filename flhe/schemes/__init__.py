"""Systems that add what they cannot read, one file each."""
