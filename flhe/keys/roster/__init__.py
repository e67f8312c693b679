"""Who takes part, and what they agreed on before they met."""
