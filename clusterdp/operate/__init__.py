"""The verbs that a user types on the login node after a submit. The verbs import no torch, and read the records in run
folders.

json.schema.json defines the keys that each verb prints with --json. Each subpackage imports only subpackages above it:

output/       printed and written text
record/       the records of a run folder
find/         the run that the user names
queue/        Slurm's rows of a run
account/      `clusterdp goodput`
why/          `clusterdp why`: why a run waits, or failed
checkpoints/  `clusterdp checkpoint`
status/       `clusterdp status` and `clusterdp watch`
logs/         `clusterdp logs`
beside/       `clusterdp shell`, `exec` and `stacks`
sweep/        `clusterdp sweep`, and the verbs above for a whole sweep
change/       `clusterdp cancel`, `stop` and `rm`, and the checks of `resume`
listing/      `clusterdp list`
compare/      `clusterdp plot` and `clusterdp diff`
html_page/    the common parts of the pages of report and rehearse
report/       `clusterdp report`
top/          `clusterdp top`
"""
