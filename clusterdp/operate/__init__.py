"""The verbs that a user types on the login node after a submit. Imports no torch; all it knows is in the run folder.

json.schema.json has the keys that --json of all verbs prints. The rooms, each of which imports those above it:

output/       how text is printed or written
record/       what a run folder has on record
find/         which run the user means
queue/        what Slurm has on a run
account/      `clusterdp goodput`
why/          `clusterdp why`: why a run waits, or failed
checkpoints/  `clusterdp checkpoint`
status/       `clusterdp status` and `clusterdp watch`
logs/         `clusterdp logs`
sweep/        `clusterdp sweep`, and the verbs above for a sweep as a whole
change/       `clusterdp cancel`, `stop` and `rm`, and what `resume` checks
listing/      `clusterdp list`
compare/      `clusterdp plot` and `clusterdp diff`
html_page/    what the pages of report and of rehearse share
report/       `clusterdp report`
"""
