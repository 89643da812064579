"""Renders a config into the script for sbatch, and into the rules of the batch program in the run folder."""
