"""The options of sbatch, srun and salloc: their names, the variables that set them, the options without effect."""

from __future__ import annotations

from clusterdp.fakeslurm.commands.getopt import Option, table
from clusterdp.fakeslurm.core.release import Release

SHARED = table("""
    account,A= acctg-freq= begin,b= chdir,D= comment= constraint,C= contiguous core-spec,S= cores-per-socket=
    cpu-freq= cpus-per-gpu= cpus-per-task,c= deadline= delay-boot= dependency,d= distribution,m= error,e= exclude,x=
    exclusive? export= extra-node-info,B= gpu-bind= gpu-freq= gpus,G= gpus-per-node= gpus-per-socket= gpus-per-task=
    gres= gres-flags= help,h hint= hold,H input,i= job-name,J= licenses,L= mail-type= mail-user= mcs-label= mem=
    mem-bind= mem-per-cpu= mem-per-gpu= mincpus= network= nice? no-kill,k? nodefile,F= nodelist,w= nodes,N=
    ntasks,n= ntasks-per-core= ntasks-per-gpu= ntasks-per-node= ntasks-per-socket= open-mode= output,o= overcommit,O
    oversubscribe,s partition,p= power= prefer= priority= profile= propagate? qos,q= quiet,Q reboot reservation=
    signal= sockets-per-node= spread-job switches= thread-spec= threads-per-core= time,t= time-min= tmp= usage
    use-min-nodes verbose,v version,V wckey= cluster:clusters,M= clusters,M= gid= uid= bb= bbf= container= context=
    tasks-per-node:ntasks-per-node=
""")

SBATCH = SHARED + table("""
    array,a= batch= cluster-constraint= export-file= get-user-env? ignore-pbs kill-on-invalid-dep= no-requeue parsable
    requeue test-only wait,W wait-all-nodes= wrap=
""")

SRUN = SHARED + table("""
    accel-bind= bcast? bcast-exclude= cluster-constraint= compress? cpu-bind= cpu_bind:cpu-bind=
    debugger-test disable-status,X epilog= exact het-group= immediate,I? interactive jobid= kill-on-bad-exit,K? label,l
    mpi= msg-timeout= multi-prog no-allocate,Z overlap? pack-group:het-group= preserve-env,E prolog= pty
    quit-on-interrupt relative,r= resv-ports? send-libs? slurmd-debug= task-epilog= task-prolog= test-only threads,T=
    unbuffered,u wait,W= whole x11?
""")

# sbatch and srun have these options. salloc has none of them, because its command runs where salloc was called.
OF_SCRIPTS = ("error", "export", "input", "open-mode", "output", "propagate")
SALLOC = [option for option in SHARED if option.name not in OF_SCRIPTS] + table("""
    bell cluster-constraint= get-user-env? kill-command,K? immediate,I? no-bell no-shell wait-all-nodes= x11?
""")

BASE = {"sbatch": SBATCH, "srun": SRUN, "salloc": SALLOC}


def options_of(command: str, release: Release) -> list[Option]:
    """Returns the options of sbatch, srun or salloc in a release."""
    gone = release.job_options_gone.split()
    added = table(f"{release.job_options_added} {getattr(release, f'{command}_options_added')}")
    return [option for option in BASE[command] if option.name not in gone] + added


def ever(command: str) -> list[Option]:
    """Returns the options that any release has."""
    added: str = getattr(Release, f"{command}_options_added").ever()
    return BASE[command] + table(f"{Release.job_options_added.ever()} {added}")


# Options without effect, because they ask for things that a laptop does not have. scontrol shows some of them.
IDLE = frozenset(
    """
    accel-bind acctg-freq bcast bcast-exclude bell cluster-constraint comment compress consolidate-segments contiguous
    cores-per-socket extra ignore-signals mem-update oom-kill-step segment spread-segments stepmgr treewidth
    wait-for-children
    cpu-bind cpu-freq debugger-test delay-boot disable-status extra-node-info get-user-env gid gpu-freq gres-flags
    interactive mail-type mail-user mcs-label mem-bind mpi msg-timeout network no-bell ntasks-per-core
    ntasks-per-socket oversubscribe power preserve-env profile propagate reboot send-libs slurmd-debug
    sockets-per-node spread-job switches threads threads-per-core time-min tmp uid wait-all-nodes wckey whole
    """.split()
)

# Options of Slurm that this cluster refuses, because it must not ignore them.
UNSUPPORTED = frozenset(
    """
    async bb container container-id container-type context epilog external external-launcher resources
    no-allocate prolog resv-ports task-epilog task-prolog x11
""".split()
)

# Options for one component of a heterogeneous job. All other options also apply to the components after it.
PER_COMPONENT = frozenset(
    """
    constraint contiguous core-spec cpus-per-gpu cpus-per-task exclude exclusive gpu-bind gpu-freq gpus gpus-per-node
    gpus-per-socket gpus-per-task gres gres-flags het-group hint licenses mincpus nodelist nodes ntasks
    ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket oversubscribe partition relative spread-job
    threads-per-core tmp tres-bind use-min-nodes
    """.split()
)

# SBATCH_NAME -> option. Slurm ignores other names, like SBATCH_NODES.
SBATCH_ENVIRON = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_ACCTG_FREQ": "acctg-freq",
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_BATCH": "batch",
    "SBATCH_CLUSTERS": "clusters",
    "SBATCH_CLUSTER_CONSTRAINT": "cluster-constraint",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_CORE_SPEC": "core-spec",
    "SBATCH_CPUS_PER_GPU": "cpus-per-gpu",
    "SBATCH_CPU_FREQ_REQ": "cpu-freq",
    "SBATCH_DEBUG": "verbose",
    "SBATCH_DELAY_BOOT": "delay-boot",
    "SBATCH_DISTRIBUTION": "distribution",
    "SBATCH_ERROR": "error",
    "SBATCH_EXCLUSIVE": "exclusive",
    "SBATCH_EXPORT": "export",
    "SBATCH_GET_USER_ENV": "get-user-env",
    "SBATCH_GPUS": "gpus",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node",
    "SBATCH_GPUS_PER_SOCKET": "gpus-per-socket",
    "SBATCH_GPUS_PER_TASK": "gpus-per-task",
    "SBATCH_GPU_BIND": "gpu-bind",
    "SBATCH_GPU_FREQ": "gpu-freq",
    "SBATCH_GRES": "gres",
    "SBATCH_GRES_FLAGS": "gres-flags",
    "SBATCH_HINT": "hint",
    "SBATCH_IGNORE_PBS": "ignore-pbs",
    "SBATCH_INPUT": "input",
    "SBATCH_JOB_NAME": "job-name",
    "SBATCH_MEM_BIND": "mem-bind",
    "SBATCH_MEM_PER_CPU": "mem-per-cpu",
    "SBATCH_MEM_PER_GPU": "mem-per-gpu",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_NETWORK": "network",
    "SBATCH_NO_KILL": "no-kill",
    "SBATCH_NO_REQUEUE": "no-requeue",
    "SBATCH_OPEN_MODE": "open-mode",
    "SBATCH_OUTPUT": "output",
    "SBATCH_OVERCOMMIT": "overcommit",
    "SBATCH_PARTITION": "partition",
    "SBATCH_POWER": "power",
    "SBATCH_PROFILE": "profile",
    "SBATCH_QOS": "qos",
    "SBATCH_REQUEUE": "requeue",
    "SBATCH_REQ_SWITCH": "switches",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_SIGNAL": "signal",
    "SBATCH_SPREAD_JOB": "spread-job",
    "SBATCH_THREADS_PER_CORE": "threads-per-core",
    "SBATCH_THREAD_SPEC": "thread-spec",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_USE_MIN_NODES": "use-min-nodes",
    "SBATCH_WAIT": "wait",
    "SBATCH_WAIT_ALL_NODES": "wait-all-nodes",
    "SBATCH_WCKEY": "wckey",
    "SLURM_CLUSTERS": "clusters",
    "SLURM_HINT": "hint",
}

SALLOC_ENVIRON = {
    "SALLOC_ACCOUNT": "account",
    "SALLOC_ACCTG_FREQ": "acctg-freq",
    "SALLOC_BELL": "bell",
    "SALLOC_CLUSTERS": "clusters",
    "SALLOC_CONSTRAINT": "constraint",
    "SALLOC_CORE_SPEC": "core-spec",
    "SALLOC_CPUS_PER_GPU": "cpus-per-gpu",
    "SALLOC_CPU_FREQ_REQ": "cpu-freq",
    "SALLOC_DEBUG": "verbose",
    "SALLOC_DELAY_BOOT": "delay-boot",
    "SALLOC_EXCLUSIVE": "exclusive",
    "SALLOC_GPUS": "gpus",
    "SALLOC_GPUS_PER_NODE": "gpus-per-node",
    "SALLOC_GPUS_PER_SOCKET": "gpus-per-socket",
    "SALLOC_GPUS_PER_TASK": "gpus-per-task",
    "SALLOC_GPU_BIND": "gpu-bind",
    "SALLOC_GPU_FREQ": "gpu-freq",
    "SALLOC_GRES": "gres",
    "SALLOC_GRES_FLAGS": "gres-flags",
    "SALLOC_HINT": "hint",
    "SALLOC_IMMEDIATE": "immediate",
    "SALLOC_KILL_CMD": "kill-command",
    "SALLOC_MEM_BIND": "mem-bind",
    "SALLOC_MEM_PER_CPU": "mem-per-cpu",
    "SALLOC_MEM_PER_GPU": "mem-per-gpu",
    "SALLOC_MEM_PER_NODE": "mem",
    "SALLOC_NETWORK": "network",
    "SALLOC_NO_BELL": "no-bell",
    "SALLOC_NO_KILL": "no-kill",
    "SALLOC_OVERCOMMIT": "overcommit",
    "SALLOC_PARTITION": "partition",
    "SALLOC_POWER": "power",
    "SALLOC_PROFILE": "profile",
    "SALLOC_QOS": "qos",
    "SALLOC_REQ_SWITCH": "switches",
    "SALLOC_RESERVATION": "reservation",
    "SALLOC_SIGNAL": "signal",
    "SALLOC_SPREAD_JOB": "spread-job",
    "SALLOC_THREADS_PER_CORE": "threads-per-core",
    "SALLOC_THREAD_SPEC": "thread-spec",
    "SALLOC_TIMELIMIT": "time",
    "SALLOC_USE_MIN_NODES": "use-min-nodes",
    "SALLOC_WAIT_ALL_NODES": "wait-all-nodes",
    "SALLOC_WCKEY": "wckey",
    "SLURM_CLUSTERS": "clusters",
    "SLURM_HINT": "hint",
}

SRUN_ENVIRON = {
    "SLURM_ACCOUNT": "account",
    "SLURM_ACCTG_FREQ": "acctg-freq",
    "SLURM_BCAST": "bcast",
    "SLURM_COMPRESS": "compress",
    "SLURM_CONSTRAINT": "constraint",
    "SLURM_CORE_SPEC": "core-spec",
    "SLURM_CPUS_PER_GPU": "cpus-per-gpu",
    "SLURM_CPU_BIND": "cpu-bind",
    "SLURM_CPU_FREQ_REQ": "cpu-freq",
    "SLURM_DELAY_BOOT": "delay-boot",
    "SLURM_DEPENDENCY": "dependency",
    "SLURM_DISABLE_STATUS": "disable-status",
    "SLURM_DISTRIBUTION": "distribution",
    "SLURM_EPILOG": "epilog",
    "SLURM_EXACT": "exact",
    "SLURM_EXCLUSIVE": "exclusive",
    "SLURM_EXPORT_ENV": "export",
    "SLURM_GPUS": "gpus",
    "SLURM_GPUS_PER_NODE": "gpus-per-node",
    "SLURM_GPUS_PER_SOCKET": "gpus-per-socket",
    "SLURM_GPUS_PER_TASK": "gpus-per-task",
    "SLURM_GPU_BIND": "gpu-bind",
    "SLURM_GPU_FREQ": "gpu-freq",
    "SLURM_GRES": "gres",
    "SLURM_GRES_FLAGS": "gres-flags",
    "SLURM_HINT": "hint",
    "SLURM_IMMEDIATE": "immediate",
    "SLURM_JOB_NUM_NODES": "nodes",
    "SLURM_KILL_BAD_EXIT": "kill-on-bad-exit",
    "SLURM_LABELIO": "label",
    "SLURM_MEM_BIND": "mem-bind",
    "SLURM_MEM_PER_GPU": "mem-per-gpu",
    "SLURM_MPI_TYPE": "mpi",
    "SLURM_NETWORK": "network",
    "SLURM_NO_KILL": "no-kill",
    "SLURM_NTASKS": "ntasks",
    "SLURM_NTASKS_PER_GPU": "ntasks-per-gpu",
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
    "SLURM_OPEN_MODE": "open-mode",
    "SLURM_OVERCOMMIT": "overcommit",
    "SLURM_OVERLAP": "overlap",
    "SLURM_PARTITION": "partition",
    "SLURM_POWER": "power",
    "SLURM_PROFILE": "profile",
    "SLURM_PROLOG": "prolog",
    "SLURM_QOS": "qos",
    "SLURM_REMOTE_CWD": "chdir",
    "SLURM_REQ_SWITCH": "switches",
    "SLURM_RESERVATION": "reservation",
    "SLURM_RESV_PORTS": "resv-ports",
    "SLURM_SEND_LIBS": "send-libs",
    "SLURM_SIGNAL": "signal",
    "SLURM_SPREAD_JOB": "spread-job",
    "SLURM_STDERRMODE": "error",
    "SLURM_STDINMODE": "input",
    "SLURM_STDOUTMODE": "output",
    "SLURM_STEP_GRES": "gres",
    "SLURM_TASK_EPILOG": "task-epilog",
    "SLURM_TASK_PROLOG": "task-prolog",
    "SLURM_THREADS": "threads",
    "SLURM_THREADS_PER_CORE": "threads-per-core",
    "SLURM_THREAD_SPEC": "thread-spec",
    "SLURM_TIMELIMIT": "time",
    "SLURM_TRES_BIND": "tres-bind",
    "SLURM_UNBUFFEREDIO": "unbuffered",
    "SLURM_USE_MIN_NODES": "use-min-nodes",
    "SLURM_WAIT": "wait",
    "SLURM_WCKEY": "wckey",
    "SLURM_WHOLE": "whole",
    "SLURM_WORKING_DIR": "chdir",
    "SRUN_CPUS_PER_TASK": "cpus-per-task",
    "SRUN_EXPORT_ENV": "export",
}
