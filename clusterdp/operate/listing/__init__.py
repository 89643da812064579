"""`clusterdp list`: the user's runs, the newest first."""
