"""The drills: the faults that a run gets, and the proof that each fault happened."""
