"""The process of one step, which starts the tasks, passes on their output, and survives a killed daemon."""
