"""From a data set to the batches of one rank, with a position that can be saved."""
