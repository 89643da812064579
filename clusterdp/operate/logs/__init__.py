"""`clusterdp logs`: the output of the ranks."""
