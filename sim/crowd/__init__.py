"""`flhe crowd`: federations that are run to see what they cost, up to a thousand clients."""
