"""What the user types at the login node after submit. Never imports torch; all it knows is in the run folder."""
