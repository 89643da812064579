"""A model on many devices."""
