"""From the live objects to a committed checkpoint."""
