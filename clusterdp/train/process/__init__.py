"""The life of a rank's process, from its environment to the outcome of its attempt."""
