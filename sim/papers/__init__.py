"""The papers taken at their word: codecs as printed, what is wrong with them, what they report."""
