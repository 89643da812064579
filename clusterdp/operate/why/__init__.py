"""`clusterdp why`: finds the reason why a run waits, failed, or is over. `clusterdp status` prints the reason in one
line."""
