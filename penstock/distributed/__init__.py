"""Several processes: joined, agreed, and ended together."""
