# Rarer words of squeue, sinfo, scontrol, sacctmgr and srun: several elements, users by number, fields, states joined by &, programs that cannot start.
# needs: 2 nodes, root, gpus
. ./lib.sh; . ./lib2.sh
start array --array=1-6 --hold --wrap=true; a=$JOB
for words in "-j ${a}_3,${a}_5" "-r -j ${a}_3,${a}_5" "-j ${a}_5,${a}_3" "-j ${a}_3" "-j ${a}_1,${a}_9" "-j ${a}_3,$a"; do
  run "squeue ${words//$a/A}" squeue -h $words -o %i
done
scancel "$a"
submit "elements" --array=1-3 --output=/dev/null --wrap='[ $SLURM_ARRAY_TASK_ID = 1 ] || until [ -e go ]; do sleep 0.2; done'; a=$JOB; jobs+=("$JOB")
wait_state "${a}_1" COMPLETED; wait_state "${a}_3" RUNNING
run "requeue Incomplete" scontrol requeue Incomplete "$a"; wait_reason "${a}_3" BeginTime
run "requeue Incomplete: after" squeue -h -r -t all -j "$a" -S i -o '%K %T %r'
run "requeue Incomplete: nothing to do" scontrol requeue incomplete "${a}_2"
run "requeue Incomplete: unknown" scontrol requeue Incomplete 67000000
run "requeue Incomplete: no job" scontrol requeue Incomplete
scancel "$a"
start over --wrap=true; wait_end "$JOB"
run "requeue Incomplete: over" scontrol requeue Incomplete "$JOB"
run "requeue of a component that is none" scontrol requeue "$JOB+1"
start held --gres=gpu:1 --hold --wrap=true
for user in "$(id -u)" "$(id -u),1" 1 99999 "$(id -un),nosuch"; do
  run "squeue -u $(sed "s/\b$(id -u)\b/<me>/; s/\b$(id -un)\b/<name>/" <<<"$user")" squeue -h -u "$user" -j "$JOB" -o %T
done
fields="admin_comment allocnodes batchflag boardspernode burstbuffer burstbufferstate clusterfeature container containerid cpus-per-task derivedec exit_code gres origin profile sperboard system_comment threads tres-alloc tres-per-node"
run "squeue -O" bash -c "for f in $fields; do squeue -j $JOB -O \$f:40 | tr -s ' \n' ' '; echo; done"
run "squeue -O: not so" bash -c "for f in admincomment trespernode job-id cnt minnodes; do squeue -j $JOB -O \$f:40 2>&1 | tr -s ' \n' ' '; echo; done"
run "squeue -O: one of two" squeue -j "$JOB" -O name,nosuch,state
run "sinfo -O" bash -c "for f in allocnodes cluster comment defaulttime extra features_act priorityjobfactor statecomplete; do sinfo -p main -O \$f | tr -s ' \n' ' '; echo; done"
run "sinfo -O: one of two" sinfo -p main -O partition,nosuch
run "drain" scontrol update NodeName="$NODE2" State=DRAIN Reason=x
for state in all 'DRAIN&IDLE' 'IDLE&DRAIN' drain idle drain,idle 'DRAIN&ALLOC'; do
  run "sinfo -t $state" sinfo -h -n "$NODE1,$NODE2" -p main -t "$state" -o '%T %D'
done
run "sinfo --json: state" bash -c "sinfo --json -n $NODE2 -p main | python3 -c 'import json, sys; print([row[\"node\"][\"state\"] for row in json.load(sys.stdin)[\"sinfo\"]][:1])'"
run "resume of a healthy and a drained node" scontrol update NodeName="$NODE1,$NODE2" State=RESUME
run "resume: after" sinfo -h -n "$NODE1,$NODE2" -p main -o '%T %D'
scontrol update NodeName="$NODE2" State=DRAIN Reason=x
run "resume of a drained and a healthy node" scontrol update NodeName="$NODE2,$NODE1" State=RESUME
run "resume: after" sinfo -h -n "$NODE1,$NODE2" -p main -o '%T %D'
printf 'echo hi\n' >plain; printf '#!/bin/sh\necho hi\n' >script; mkdir folder; cp plain text; chmod +x text
for program in plain script folder text nosuch; do run "srun ./$program" bash -c "srun ./$program 2>&1 | sed 's/n[0-9]*: task/N: task/'; exit \${PIPESTATUS[0]}"; done
run "srun -C unknown" srun -C nosuch true
run "srun -N0" srun -N0 true
submit "in a job" --output=job.out --wrap='srun -C nosuch true 2>&1 | sed "s/job [0-9]*/job J/"'; wait_end "$JOB"
run "srun -C unknown, in a job" cat job.out
run "CPUs for each task and each GPU" sbatch --gpus=2 --cpus-per-gpu=2 --cpus-per-task=4 --wrap=true
for field in maxtrespu maxtresperuser grptres maxjobspu flags minprio nosuch; do run "sacctmgr show qos format=$field" bash -c "sacctmgr -P show qos format=name,$field | head -2"; done
touch go
