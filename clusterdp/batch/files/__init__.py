"""What the program reads and writes in the run folder, and the words that it shares with its readers."""
