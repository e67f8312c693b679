"""Statistics over the patients of five hospitals, each of which shows nobody its own."""
