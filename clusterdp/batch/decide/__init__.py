"""Pure decisions: whether an attempt may start, and how it ended."""
