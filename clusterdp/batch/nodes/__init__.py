"""The nodes of the job: their keepers, copies in memory, spare ones, the meeting point of the ranks."""
