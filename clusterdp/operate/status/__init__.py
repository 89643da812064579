"""The state of a run: `clusterdp status` and `clusterdp watch`."""
