"""From a checkpoint, or from another program's files, into the objects."""
