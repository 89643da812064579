"""The controller's process, which has all jobs and nodes and decides which job runs where."""
