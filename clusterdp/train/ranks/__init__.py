"""The ranks of a job: their meeting point, their agreements, and their common stop."""
