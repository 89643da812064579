"""Renders a config into the script for sbatch, and into the rules of the batch program in the run folder.

script_spec    a config in the terms of a script
script         the script for sbatch, rendered from a template
batch_rules    the config's decisions for the batch program
shipped_files  the example configs and the script templates that come with the package
job_secrets    secrets that reach a job without being in the run folder
"""
