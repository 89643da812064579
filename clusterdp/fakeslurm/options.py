"""The options of sbatch and srun: which there are, which the environment may give, and which mean nothing here."""

from .getopt import table

SHARED = table("""
    account,A= acctg-freq= begin,b= chdir,D= comment= constraint,C= contiguous core-spec,S= cores-per-socket=
    cpu-freq= cpus-per-gpu= cpus-per-task,c= deadline= delay-boot= dependency,d= distribution,m= error,e= exclude,x=
    exclusive? export= extra-node-info,B= gpu-bind= gpu-freq= gpus,G= gpus-per-node= gpus-per-socket= gpus-per-task=
    gres= gres-flags= help,h hint= hold,H input,i= job-name,J= licenses,L= mail-type= mail-user= mcs-label= mem=
    mem-bind= mem-per-cpu= mem-per-gpu= mincpus= network= nice? no-kill,k? nodefile,F= nodelist,w= nodes,N=
    ntasks,n= ntasks-per-core= ntasks-per-gpu= ntasks-per-node= ntasks-per-socket= open-mode= output,o= overcommit,O
    oversubscribe,s partition,p= power= prefer= priority= profile= propagate? qos,q= quiet,Q reboot reservation=
    signal= sockets-per-node= spread-job switches= thread-spec= threads-per-core= time,t= time-min= tmp= usage
    use-min-nodes verbose,v version,V wait-all-nodes= wckey= clusters,M= gid= uid= bb= bbf= container=
    kill-on-invalid-dep= requeue no-requeue test-only
""")

SBATCH = SHARED + table("""
    array,a= batch= cluster-constraint= export-file= get-user-env? ignore-pbs parsable wait,W wrap=
""")

SRUN = SHARED + table("""
    bcast? compress? cpu-bind= debugger-test disable-status,X epilog= exact het-group= immediate,I? interactive
    jobid= kill-on-bad-exit,K? label,l launch-cmd launcher-opts= max-exit-timeout= max-threads= mpi= msg-timeout=
    multi-prog no-allocate,Z no-shell overlap preserve-env,E prolog= pty quit-on-interrupt relative,r= resv-ports?
    send-libs? slurmd-debug= task-epilog= task-prolog= threads,T= unbuffered,u wait,W= whole
""")

SALLOC = SHARED + table("""
    bell kill-command,K? immediate,I? no-bell no-shell wait,W=
""")

# Accepted, for they ask for nothing that a laptop could give or that anybody could miss; scontrol shows some of them.
IDLE = frozenset(
    """
    acctg-freq bcast bell cluster-constraint comment compress contiguous cores-per-socket cpu-bind cpu-freq
    delay-boot disable-status extra-node-info get-user-env gid gpu-bind gpu-freq gres-flags interactive launcher-opts
    mail-type mail-user max-exit-timeout max-threads mcs-label mem-bind mem-per-gpu mpi msg-timeout network no-bell
    ntasks-per-core ntasks-per-socket oversubscribe power preserve-env profile propagate reboot send-libs
    slurmd-debug sockets-per-node spread-job switches threads threads-per-core time-min tmp uid wait-all-nodes wckey
    whole debugger-test
    """.split()
)

# Known to Slurm, not to this cluster: refused, never ignored.
UNSUPPORTED = frozenset(
    """
    bb container epilog launch-cmd no-allocate prolog resv-ports task-epilog task-prolog
""".split()
)

# What each component of a heterogeneous job says for itself; the rest holds for the components after it, too.
PER_COMPONENT = frozenset(
    """
    constraint contiguous core-spec cpus-per-gpu cpus-per-task exclude exclusive gpu-bind gpu-freq gpus gpus-per-node
    gpus-per-socket gpus-per-task gres gres-flags het-group hint licenses mincpus nodelist nodes ntasks
    ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket oversubscribe partition relative spread-job
    threads-per-core tmp use-min-nodes
    """.split()
)

# SBATCH_NAME -> option. Others do not exist (there is no SBATCH_NODES), and count for nothing.
SBATCH_ENVIRON = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_CPUS_PER_GPU": "cpus-per-gpu",
    "SBATCH_DEBUG": "verbose",
    "SBATCH_DISTRIBUTION": "distribution",
    "SBATCH_ERROR": "error",
    "SBATCH_EXCLUSIVE": "exclusive",
    "SBATCH_EXPORT": "export",
    "SBATCH_GPUS": "gpus",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node",
    "SBATCH_GPUS_PER_TASK": "gpus-per-task",
    "SBATCH_GRES": "gres",
    "SBATCH_INPUT": "input",
    "SBATCH_JOB_NAME": "job-name",
    "SBATCH_MEM_PER_CPU": "mem-per-cpu",
    "SBATCH_MEM_PER_GPU": "mem-per-gpu",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_NO_KILL": "no-kill",
    "SBATCH_NO_REQUEUE": "no-requeue",
    "SBATCH_OPEN_MODE": "open-mode",
    "SBATCH_OUTPUT": "output",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_REQUEUE": "requeue",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_SIGNAL": "signal",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_WAIT": "wait",
    "SBATCH_WCKEY": "wckey",
}

SALLOC_ENVIRON = {
    "SALLOC_ACCOUNT": "account",
    "SALLOC_CONSTRAINT": "constraint",
    "SALLOC_DEBUG": "verbose",
    "SALLOC_EXCLUSIVE": "exclusive",
    "SALLOC_GPUS": "gpus",
    "SALLOC_GPUS_PER_NODE": "gpus-per-node",
    "SALLOC_GPUS_PER_TASK": "gpus-per-task",
    "SALLOC_GRES": "gres",
    "SALLOC_IMMEDIATE": "immediate",
    "SALLOC_KILL_CMD": "kill-command",
    "SALLOC_MEM_PER_CPU": "mem-per-cpu",
    "SALLOC_MEM_PER_NODE": "mem",
    "SALLOC_NO_BELL": "no-bell",
    "SALLOC_PARTITION": "partition",
    "SALLOC_QOS": "qos",
    "SALLOC_RESERVATION": "reservation",
    "SALLOC_SIGNAL": "signal",
    "SALLOC_TIMELIMIT": "time",
    "SALLOC_WCKEY": "wckey",
}

SRUN_ENVIRON = {
    "SLURM_ACCOUNT": "account",
    "SLURM_CONSTRAINT": "constraint",
    "SLURM_DEPENDENCY": "dependency",
    "SLURM_DISTRIBUTION": "distribution",
    "SLURM_EXACT": "exact",
    "SLURM_EXCLUSIVE": "exclusive",
    "SLURM_EXPORT_ENV": "export",
    "SLURM_GRES": "gres",
    "SLURM_GPUS": "gpus",
    "SLURM_GPUS_PER_NODE": "gpus-per-node",
    "SLURM_GPUS_PER_TASK": "gpus-per-task",
    "SLURM_HINT": "hint",
    "SLURM_IMMEDIATE": "immediate",
    "SLURM_JOB_NUM_NODES": "nodes",
    "SLURM_KILL_BAD_EXIT": "kill-on-bad-exit",
    "SLURM_LABELIO": "label",
    "SLURM_NTASKS": "ntasks",
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
    "SLURM_OPEN_MODE": "open-mode",
    "SLURM_OVERLAP": "overlap",
    "SLURM_PARTITION": "partition",
    "SLURM_QOS": "qos",
    "SLURM_REMOTE_CWD": "chdir",
    "SLURM_STDERRMODE": "error",
    "SLURM_STDINMODE": "input",
    "SLURM_STDOUTMODE": "output",
    "SLURM_STEP_GRES": "gres",
    "SLURM_TIMELIMIT": "time",
    "SLURM_UNBUFFEREDIO": "unbuffered",
    "SLURM_WAIT": "wait",
    "SLURM_WHOLE": "whole",
    "SLURM_WORKING_DIR": "chdir",
    "SRUN_CPUS_PER_TASK": "cpus-per-task",
    "SRUN_EXPORT_ENV": "export",
}
