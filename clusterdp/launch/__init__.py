"""From a config to a submitted job. Runs on the login node, and imports no torch.

plan              all that a submission would write and send; submit()
resume            a new job for a run that is there
again             a new run from the record of another
job               Job: the handle of a submitted run
script_spec       a config in the terms of a script
script            the text that sbatch is given, rendered from a template
batch_rules       what the config decides for the batch program
batch_copy        the copy of that program in the run folder
sbatch            backend: sbatch
submitit          backend: submitit
new_folder        the folder of a new run, made, and removed if nothing was submitted
sweep/            several runs that differ in some values, as one job array
code_snapshot     the copy of the submit directory that every attempt runs
copied_files      its files: links to those of an earlier run where nothing has changed
source_record     what a run was made from: commit, packages, by whom
excluded_folders  folders that no snapshot takes in
git_ignored       what git ignores, and a job may need all the same
job_secrets       how secrets reach a job without being in the run folder
lock              one process at a time submits a job of a run
refusals          sbatch's refusals, each with the key that it means
in_doubt          a submission of which nobody knows how it ended
entry_check       whether the entry exists and takes the params, without importing it
installed_check   whether the packages are installed that the config asks for
init              `clusterdp init`
shipped_files     the example configs and the script templates that come with the package
show              `clusterdp show`
"""
