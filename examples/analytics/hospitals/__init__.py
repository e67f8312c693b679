"""Statistics over the patients of five hospitals, each of which keeps its patients to itself."""
