"""What is done by a decision: a step, its end, checks of nodes, ranks in reserve."""
