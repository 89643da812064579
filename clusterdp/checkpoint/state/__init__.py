"""The state of a training: objects, tensors, random number generators; and the ranks that hold it."""
