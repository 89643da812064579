"""What a user types on the login node after a submit. Imports no torch; all it knows is in the run folder.

status             `clusterdp status`
watch              `clusterdp watch`
listing/           `clusterdp list`
note               `clusterdp note`
remove             `clusterdp rm`
account/           `clusterdp goodput`
logs/              `clusterdp logs`
report/            `clusterdp report`
output_file        the file that -o names, of report and plot
html_page/         what the pages of report and of rehearse share
plot               `clusterdp plot`
diff               `clusterdp diff`
stop               `clusterdp stop`
cancel             `clusterdp cancel`
sweep/             `clusterdp sweep`, and the verbs above for a sweep as a whole
resume_check       what `clusterdp resume` checks before it submits
checkpoints/       `clusterdp checkpoint`
find_run           which run the user means
run_index          the index of the user's runs
run_cluster        which cluster the jobs of a run are on
run_history        what a run folder says has happened
moved_folder       a run folder that was copied or moved
run_data           what --json says of a run; json.schema.json beside it has the keys of all verbs
curves             what a run measured, over all attempts
attempt_history    one attempt, as its files tell it
standstill         ranks that are slow, and a run that makes no progress
slurmstepd_notice  what slurmstepd wrote when it ended an attempt
run_state          the states of a run, and their exit codes
queue              what squeue says of a run, in words
why/               `clusterdp why`: why it waits, or failed
log_files          where the logs are
follow             a run followed to its end
event_order        the events of a run in the order in which they happened
event_text         one line for each event
next_command       what to type next
formatting         tables, times, sizes and colours
terminal           text without control characters, no wider than a terminal
"""
