"""The verbs for a whole sweep. A single element of a sweep is an ordinary run."""
