"""What the training did after a save, kept and compared with what an attempt does that resumes from this save."""
