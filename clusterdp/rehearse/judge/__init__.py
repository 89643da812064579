"""The verdict on a drill, from the files and records that its run has left."""
