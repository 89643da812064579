# What slurmstepd writes if the tasks of a node share a file, with --label: whole lines, in pieces of 1024 bytes at most.
# needs: 2 nodes
. ./lib.sh
submit "submit" label-files.sbatch
wait_end "$JOB"
run "files" bash -c 'ls *.log'
run "a line in two parts, while another task prints" cat buffered-0000.log
run "the same, --unbuffered" cat unbuffered-0000.log
run "stdout and stderr are two pipes" sort streams-0000.log
run "stdout and stderr in one pipe" cat one-stream-0000.log
run "--error" cat apart-0000.log apart-errors-0000.log
run "bytes that are no text" cat -A bytes-0000.log
run "the lengths of long lines" awk '{ print length }' long-0000.log
run "appended" bash -c 'sort again-000?.log'
run "a task is killed" bash -c 'cat killed-000?.log | sort'
run "--label with 12 tasks" bash -c 'cat wide-000?.log | sort'
