"""The loop over batches that restores, saves and stops a training."""
