"""The options of sbatch, srun and salloc: their names, the variables that set them, the options without effect."""

from __future__ import annotations

from ...core.release import Release
from .getopt import Option, table

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


def _variables(prefix: str, text: str) -> dict[str, str]:
    """Returns the options that variables set, by variable: SBATCH_ACCOUNT for `account`, SBATCH_ARRAY_INX for
    `array=ARRAY_INX`."""
    pairs = (word.partition("=") for word in text.split())
    return {f"{prefix}_{name or option.upper().replace('-', '_')}": option for option, _, name in pairs}


# Slurm ignores other names, like SBATCH_NODES.
SBATCH_ENVIRON = _variables(
    "SBATCH",
    """
    account acctg-freq array=ARRAY_INX batch clusters cluster-constraint constraint core-spec cpus-per-gpu
    cpu-freq=CPU_FREQ_REQ verbose=DEBUG delay-boot distribution error exclusive export get-user-env gpus
    gpus-per-node gpus-per-socket gpus-per-task gpu-bind gpu-freq gres gres-flags hint ignore-pbs input job-name
    mem-bind mem-per-cpu mem-per-gpu mem=MEM_PER_NODE network no-kill no-requeue open-mode output overcommit
    partition power profile qos requeue switches=REQ_SWITCH reservation signal spread-job threads-per-core
    thread-spec time=TIMELIMIT use-min-nodes wait wait-all-nodes wckey
    """,
) | {"SLURM_CLUSTERS": "clusters", "SLURM_HINT": "hint"}

SALLOC_ENVIRON = _variables(
    "SALLOC",
    """
    account acctg-freq bell clusters constraint core-spec cpus-per-gpu cpu-freq=CPU_FREQ_REQ verbose=DEBUG
    delay-boot exclusive gpus gpus-per-node gpus-per-socket gpus-per-task gpu-bind gpu-freq gres gres-flags hint
    immediate kill-command=KILL_CMD mem-bind mem-per-cpu mem-per-gpu mem=MEM_PER_NODE network no-bell no-kill
    overcommit partition power profile qos switches=REQ_SWITCH reservation signal spread-job threads-per-core
    thread-spec time=TIMELIMIT use-min-nodes wait-all-nodes wckey
    """,
) | {"SLURM_CLUSTERS": "clusters", "SLURM_HINT": "hint"}

SRUN_ENVIRON = _variables(
    "SLURM",
    """
    account acctg-freq bcast compress constraint core-spec cpus-per-gpu cpu-bind cpu-freq=CPU_FREQ_REQ delay-boot
    dependency disable-status distribution epilog exact exclusive export=EXPORT_ENV gpus gpus-per-node
    gpus-per-socket gpus-per-task gpu-bind gpu-freq gres gres-flags hint immediate nodes=JOB_NUM_NODES
    kill-on-bad-exit=KILL_BAD_EXIT label=LABELIO mem-bind mem-per-gpu mpi=MPI_TYPE network no-kill ntasks
    ntasks-per-gpu ntasks-per-node open-mode overcommit overlap partition power profile prolog qos chdir=REMOTE_CWD
    switches=REQ_SWITCH reservation resv-ports send-libs signal spread-job error=STDERRMODE input=STDINMODE
    output=STDOUTMODE gres=STEP_GRES task-epilog task-prolog threads threads-per-core thread-spec time=TIMELIMIT
    tres-bind unbuffered=UNBUFFEREDIO use-min-nodes wait wckey whole chdir=WORKING_DIR
    """,
) | {"SRUN_CPUS_PER_TASK": "cpus-per-task", "SRUN_EXPORT_ENV": "export"}
