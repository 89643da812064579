"""From a config to the text that sbatch is given, and to the batch program in the run folder.

script_spec    a config in the terms of a script
script         the text that sbatch is given, rendered from a template
batch_rules    what the config decides for the batch program
shipped_files  the example configs and the script templates that come with the package
job_secrets    how secrets reach a job without being in the run folder
"""
