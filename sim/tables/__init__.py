"""The papers' tables and figures, measured again: what to measure, what came of it, how it is shown."""
