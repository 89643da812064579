"""The Trainer: a whole training in one object."""
