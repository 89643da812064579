"""Why a run waits, failed, or is over: `clusterdp why`, and what `status` says of it in one line.

show_why         `clusterdp why`: the screen and the JSON
explanation      why a run waits, failed, or is over, as facts in words
pending_reasons  Slurm's reasons for a pending job, and what to do; a table
wait             what a pending job asks for, when Slurm expects to start it, and which smaller request would fit
first_failure    which rank failed first, and by which evidence
failure_words    a failure in words
rank_log         the end of what a rank printed, and the error in it
match            finding errors in lines, and known ones among them
signatures       the failures that are known: a table with cause, remedy and a real output of each
signature        what a line of that table has
srun_messages    what srun, slurmstepd and torchrun wrote of the ranks
missing_file     a failure for a file that the snapshot did not take in
"""
