"""What the five papers get wrong or leave open, each with a proof that runs."""
