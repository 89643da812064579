"""The table of differences between the releases of Slurm that programs can see.

22.05.8, 24.11.5 and 26.05.5 are recorded from a real Slurm (tests/slurm_facts/records). Tests compare the fake with
these records. The releases between these three are interpolated: a rule begins with the release that its source names,
or, without a source, with the first recorded release that has the rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import FakeSlurmError
from . import error_texts
from .per_release import Added, PerRelease

# The releases, each with the version that Slurm's commands print.
VERSIONS = {
    "22.05": "22.05.8",
    "23.02": "23.02.7",
    "23.11": "23.11.10",
    "24.05": "24.05.7",
    "24.11": "24.11.5",
    "25.05": "25.05.4",
    "25.11": "25.11.2",
    "26.05": "26.05.5",
}


def version_of(text: str) -> str:
    """Returns the version of a release: 24.11.5 for 24.11, 24.11.3 for 24.11.3. Raises FakeSlurmError for an unknown
    release."""
    release = ".".join(text.split(".")[:2])
    if release not in VERSIONS:
        raise FakeSlurmError(f"slurm_version: the fake knows no release {text!r}. Choose one of {', '.join(VERSIONS)}.")
    return VERSIONS[release] if text == release else text


BASE_STATES = (
    "PENDING RUNNING SUSPENDED COMPLETED CANCELLED FAILED TIMEOUT NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE".split()
)
FLAGS = """
    OUT_OF_MEMORY COMPLETING CONFIGURING RESIZING RESV_DEL_HOLD REQUEUED REQUEUE_FED REQUEUE_HOLD REVOKED SIGNALING
    SPECIAL_EXIT STAGE_OUT STOPPED
""".split()
STATES = ",".join([*BASE_STATES, *FLAGS])


@dataclass(frozen=True)
class Release:
    """The rules of one release. Releases are compared as strings, because years and months have two digits."""

    version: str

    # -- environment --
    # whether jobs have SLURM_JOB_START_TIME and SLURM_JOB_END_TIME (release notes of 23.02)
    times_in_environ = PerRelease({"22.05": False, "23.02": True})
    # whether tasks have SLURM_NODE_ALIASES, SLURM_WORKING_CLUSTER, SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0 (recorded)
    has_old_variables = PerRelease({"22.05": True, "24.11": False})
    # variables by which mpirun and similar launchers pass options to srun (source: set_env_from_opts in env.c, 23.11)
    tells_launchers = PerRelease({"22.05": False, "23.11": True})
    # whether jobs have SLURM_OOM_KILL_STEP=0, and tasks SLURMD_DEBUG=2 (recorded)
    has_debug_variables = PerRelease({"22.05": False, "24.11": True})
    # SLURM_TRES_PER_TASK has --cpus-per-task and --gpus-per-task (recorded); srun thus inherits --cpus-per-task, too
    tres_per_task = PerRelease({"22.05": False, "24.11": True})
    # the name of GPUs in SLURMD_TRES_BIND and, if tres_per_task is true, in SLURM_TRES_BIND (recorded)
    gpu_in_bind = PerRelease({"22.05": "gpu", "24.11": "gres/gpu"})
    # whether an srun outside of jobs sets SLURM_GPUS_PER_NODE (recorded)
    own_gpus_per_node = PerRelease({"22.05": False, "24.11": True})
    # the tasks that have SLURM_JOB_GROUP: none, those of an srun outside of jobs, all (recorded)
    tasks_with_group = PerRelease({"22.05": "none", "24.11": "own", "26.05": "all"})
    # SLURM_JOB_SLUID, SLURM_JOB_EXCLUSIVE, SLURM_JOB_OVERSUBSCRIBE are set, and SLURM_STEP_ID=-5 in scripts (recorded)
    has_sluid = PerRelease({"22.05": False, "26.05": True})

    # -- jobs --
    # a job that ends by itself in its grace time: it is requeued or PREEMPTED (commit a689104d15, first in 24.05)
    requeues_after_grace = PerRelease({"22.05": False, "24.05": True})
    # a job that was requeued in its grace time counts as in grace in its next attempt, too (recorded; source to 25.11)
    remembers_grace = PerRelease({"22.05": False, "24.05": True, "26.05": False})
    # the reason of a job whose script was killed: RaisedSignal:9(Killed) (commit c1185c6d20, first in 23.02)
    signal_in_reason = PerRelease({"22.05": False, "23.02": True})
    # DerivedExitCode includes steps that end after their job, or whose srun was killed (recorded)
    derived_counts_all = PerRelease({"22.05": False, "24.11": True})
    # the wait status of a job that ended because a node failed; None: the wait status of its script (recorded)
    status_of_node_fail = PerRelease[int | None]({"22.05": None, "24.11": 1})
    # sacct has a row for the attempt that waits after a requeue because of a failed node (recorded)
    accounts_after_node_fail = PerRelease({"22.05": False, "24.11": True})
    # a node's status is the status of its last task, not of its worst task (recorded)
    last_task_counts = PerRelease({"22.05": True, "24.11": False})
    # a job that asks for more than its partition has is refused; False: the job waits with PartitionConfig (recorded)
    refuses_oversized = PerRelease({"22.05": False, "24.11": True, "26.05": False})
    # a --dependency on a job that does not exist is refused (recorded)
    refuses_unknown_dependency = PerRelease({"22.05": False, "24.11": True})
    # the reason UnavailableNodes also lists drained nodes that a job names, not only nodes that are down (recorded)
    drained_is_unavailable = PerRelease({"22.05": True, "24.11": False})
    # scontrol shows a node on which the scheduler plans a job as MIXED+PLANNED (recorded)
    shows_planned = PerRelease({"22.05": False, "24.11": True})
    # the exit code of an srun whose step lost a node while the job continues (recorded)
    srun_code_of_node_fail = PerRelease[int | None]({"22.05": None, "24.11": 1})
    # a --no-kill job whose batch host is set DOWN fails; otherwise it continues without a script (recorded)
    fails_without_batch_host = PerRelease({"22.05": True, "24.11": False})
    # a down node keeps the CPUs of a --no-kill job until the job ends, and is therefore MIXED (recorded)
    no_kill_keeps_node = PerRelease({"22.05": False, "24.11": True})

    # an attempt that is requeued while it ends by scancel or at its limit is REQUEUED in sacct (recorded)
    requeue_renames_attempt = PerRelease({"22.05": True, "26.05": False})
    # sacct shows exit codes without their highest bit: 137 as 9 (recorded)
    sacct_cuts_codes = PerRelease({"22.05": True, "26.05": False})
    # sacct shows steps that ran before their job lost a node as RESIZING, not in their final states (recorded)
    steps_resize = PerRelease({"22.05": True, "26.05": False})
    # scontrol show config prints PreemptParameters (recorded)
    has_preempt_parameters = PerRelease({"22.05": False, "24.11": True})

    # --nodes and NumNodes= may be a list, like 1,2,4 (23.02, REST schema; 22.05 and 24.11 are recorded)
    knows_node_lists = PerRelease({"22.05": False, "23.02": True})
    # a job that has lost a node shows the number of those left as asked for; else, as that of its last nodes (recorded)
    asks_for_nodes_left = PerRelease({"22.05": False, "24.11": True})
    # a range of nodes ends at the tasks of its least nodes, also if --ntasks-per-node alone sets these (recorded)
    tasks_limit_nodes = PerRelease({"22.05": True, "24.11": False})
    # a job with a range of nodes keeps the tasks of its last nodes, and so waits for as many again (recorded)
    keeps_given_tasks = PerRelease({"22.05": True, "24.11": False})

    # -- srun and slurmstepd --
    # the first word of srun's warnings (23.02 has warning() for them)
    warning = PerRelease({"22.05": "Warning", "23.02": "warning"})
    # srun may ignore the job's number of tasks, and keeps --ntasks-per-node for fewer tasks (24.05, src/srun/opt.c)
    tasks_follow_nodes = PerRelease({"22.05": False, "24.05": True})
    # tasks whose number follows from --cpus-per-task have the distribution "block", even one task a node (recorded)
    tasks_by_cpus_are_block = PerRelease({"22.05": False, "24.11": True})
    # slurmstepd prints why a job ends, even if its script has already ended (recorded)
    says_late_why = PerRelease({"22.05": False, "24.11": True})
    # the text before `Terminating StepId=` (since 23.02, srun has no launch plugin)
    step_signal = PerRelease({"22.05": "launch/slurm: _step_signal: ", "23.02": ""})
    # slurmstepd prints why a job or step ends: DUE to SIGNAL Terminated, DUE TO TASK FAILURE (recorded)
    says_signal = PerRelease({"22.05": False, "26.05": True})
    # slurmstepd's lines in the output begin with [2026-11-23T01:05:04.722], not with its name (recorded)
    stepd_says_time = PerRelease({"22.05": False, "26.05": True})
    # `srun --gres=none` is allowed in a job with --gpus-per-node (recorded)
    gres_none_always = PerRelease({"22.05": False, "24.11": True})
    # --export=NIL loads the login environment, as every list of names does (recorded)
    nil_gets_user_env = PerRelease({"22.05": True, "24.11": False})

    # the states that squeue --states accepts (recorded)
    job_states = PerRelease(
        {
            "22.05": STATES,
            "24.11": STATES.lower(),
            "26.05": STATES.lower().replace("resizing", "expediting,resizing"),
        }
    )
    # the text after `slurm_suspend error:` in an error of scontrol hold (recorded)
    after_suspend_error = PerRelease({"22.05": " ", "26.05": ""})
    # the text for the number of a step that waits for resources (recorded)
    waiting_step = PerRelease({"22.05": "TDB", "26.05": "TBD"})
    # --test-only gives each task its own node while nodes are left, unlike the placement of a real job (recorded)
    test_only_spreads = PerRelease({"22.05": False, "26.05": True})
    # the text before `using` in the output of --test-only (26.05, src/api/allocate.c)
    before_using = PerRelease({"22.05": "", "26.05": "a "})

    # the error of State=RESUME for a healthy node (recorded)
    resume_of_well_node = PerRelease(
        {"22.05": "Invalid node state specified", "26.05": "Invalid node state transition"}
    )
    # errors of squeue and sinfo about an unknown SLURM_CLUSTERS name --cluster and are fatal (recorded)
    clusters_are_fatal = PerRelease({"22.05": False, "24.11": True})

    # -- commands --
    # scontrol has the option --json (release notes of 23.02)
    scontrol_has_json = PerRelease({"22.05": False, "23.02": True})
    # the environment variable that scontrol show hostnames reads if it has no argument
    nodes_variable = PerRelease({"22.05": "SLURM_NODELIST", "23.02": "SLURM_JOB_NODELIST"})
    # scontrol show step JOB.batch finds the batch step; 22.05 reads a number there (recorded)
    finds_batch_step = PerRelease({"22.05": False, "24.11": True})
    # the error of --gpus-per-task if the number of tasks is unknown (recorded)
    per_task_alone = PerRelease(
        {
            "22.05": "--gpus-per-task used without either --gpus or -n/--ntasks is not allowed.",
            "24.11": "--gpus-per-task or --tres-per-task used without either --gpus or -n/--ntasks is not allowed.",
        }
    )
    # sbatch refuses --cpus-per-gpu without GPUs, and -B that no node has for a job that can wait for nodes (recorded)
    refuses_cpus_per_no_gpu = PerRelease({"22.05": False, "24.11": True})
    # --gpu-bind in jobs is treated as --tres-bind; False: SLURM_GPU_BIND gets the value of --gpu-bind (recorded)
    bind_is_tres = PerRelease({"22.05": False, "24.11": True})
    # srun --gpu-bind=none hides the GPUs from the tasks (recorded)
    bind_none_hides = PerRelease({"22.05": True, "24.11": False})
    # a step's --gpus-per-task may not exceed the job's --gpus-per-task, which alone limits the step's GPUs (recorded)
    limits_gpus_per_task = PerRelease({"22.05": True, "24.11": False})
    # --gpu-bind=per_task binds a node's only task, too, and an inherited bind wins over --gpus-per-task (recorded)
    binds_single_tasks = PerRelease({"22.05": False, "26.05": True})
    # srun sets SLURM_GPUS to the value of its own --gpus (recorded)
    step_sets_gpus = PerRelease({"22.05": False, "24.11": True})
    # options that releases added or removed (source: slurm_opt.c and the opts.c of each command), as in options.py
    job_options_added = Added(
        {
            "23.02": "container-id= extra= tres-per-task=",
            "23.11": "tres-bind=",
            "24.05": "segment= stepmgr resv-ports?",
            "24.11": "oom-kill-step?",
            "25.11": "consolidate-segments resources= spread-segments",
            "26.05": "container-type= mem-update=",
        }
    )
    sbatch_options_added = Added({"25.05": "external get-user-env", "25.11": "requeue?"})
    srun_options_added = Added(
        {
            "23.11": "external-launcher? treewidth=",
            "25.05": "wait-for-children",
            "26.05": "async ignore-signals= parsable",
        }
    )
    salloc_options_added = Added({})
    job_options_gone = Added({"24.05": "power"})
    # errors of sbatch and srun about a value that differ from the errors in option_values.py (recorded)
    complaints = PerRelease(
        {
            "22.05": dict[str, str](),
            "24.11": {
                "gpu-bind": "Invalid --gpu-bind argument: {}",
                "gres-flags": "Invalid --gres-flags specification: {}",
            },
        }
    )
    # the error of --batch with features that --constraint does not have (recorded)
    batch_refused = PerRelease(
        {
            "22.05": "Job --batch option is invalid or not a subset of --constraints",
            "24.11": "Job --batch option is invalid or not a subset of --constraint",
        }
    )
    # sbatch itself refuses a --nodelist or --exclude that cannot be parsed (recorded)
    bad_nodelist_is_fatal = PerRelease({"22.05": False, "24.11": True})
    # --json may name the schema, like --json=v0.0.42 (source: 23.11)
    json_options = PerRelease({"22.05": "json yaml", "23.11": "json? yaml?"})
    # scontrol show job prints the error about a missing array element on stderr (recorded)
    missing_element_on_stderr = PerRelease({"22.05": False, "26.05": True})
    # the error of scontrol update MinMemoryNode for a running job (recorded)
    memory_is_fixed = PerRelease(
        {"22.05": error_texts.NOT_PENDING, "26.05": "Requested operation requires extern step"}
    )
    # options that releases added to squeue (source: squeue/opts.c)
    squeue_options_added = Added({"23.11": "only-job-state", "24.05": "helpstate notme"})
    # squeue --only-job-state refuses most other options; False: it refuses only --steps (source: squeue/opts.c, 25.05)
    only_job_state_is_alone = PerRelease({"22.05": False, "25.05": True})
    # squeue --user accepts `nobody` (recorded)
    nobody_is_a_user = PerRelease({"22.05": True, "26.05": False})
    # scontrol show topology prints a message if there is no topology (recorded)
    says_no_topology = PerRelease({"22.05": True, "24.11": False})
    # scontrol update ArrayTaskThrottle is accepted for a job that is not an array (recorded)
    throttles_plain_jobs = PerRelease({"22.05": True, "24.11": False})
    # sacct has the option --array (release notes of 23.02)
    sacct_has_array = PerRelease({"22.05": False, "23.02": True})
    # srun --hint prints an error because the cluster lacks support for CPU binding (recorded)
    hint_needs_binding = PerRelease({"22.05": True, "24.11": False})
    # #SBATCH --comment=two\\ words is one word (source: get_argument in sbatch/opt.c, 24.05)
    backslash_keeps_space = PerRelease({"22.05": False, "24.05": True})
    # --nodelist may name more nodes than --nodes allows: the job then gets some of these nodes (recorded)
    nodelist_may_be_longer = PerRelease({"22.05": False, "24.11": True})
    # a job gets only as many CPUs of a node as its whole tasks need; False: left-over CPUs, too (recorded)
    cpus_of_whole_tasks = PerRelease({"22.05": False, "24.11": True})
    # the tasks of --ntasks are dealt to the nodes, even with --ntasks-per-node; False: each node is filled up first
    # (source of this rule: _get_task_count in dist_tasks.c, 24.11; 26.05 recorded)
    deals_asked_tasks = PerRelease({"22.05": False, "24.11": True, "26.05": False})
    # --gpus with --ntasks decides the tasks of each node if one number is a multiple of the other (recorded)
    gpus_share_tasks_out = PerRelease({"22.05": False, "24.11": True})
    # --ntasks of a job with GPUs limits its tasks on each node, too (source: eval_nodes.c, 25.11)
    tasks_limit_each_node = PerRelease({"22.05": False, "25.11": True})
    # --spread-job gives each node an equal number of tasks (recorded)
    spread_job_is_even = PerRelease({"22.05": False, "26.05": True})
    # a refused --constraint or --prefer still uses up a job id (recorded)
    bad_feature_takes_id = PerRelease({"22.05": True, "24.11": False})
    # the error of --constraint=a*2&b*1 (recorded)
    counted_features = PerRelease({"22.05": error_texts.NODE_CONFIG, "24.11": error_texts.INVALID_FEATURE})

    # -- output --
    # fields that releases added to sacct (source: fields[] in sacct.c)
    sacct_fields_added = Added(
        {
            "23.02": "Extra FailedNode Licenses Planned PlannedCPU PlannedCPURAW",
            "24.05": "StdErr StdIn StdOut",
            "24.11": "QOSREQ Restarts SLUID",
            "25.05": "ReqReservation SegmentSize",
            "26.05": "Exclusive OriginalSLUID OverSubscribe",
        }
    )
    sacct_fields_gone = Added({"23.02": "Reserved ResvCPU ResvCPURAW"})
    # sacct shows a job that never ran with the CPUs that it asked for (recorded)
    sacct_counts_asked_cpus = PerRelease({"22.05": True, "24.11": False})
    # the start that sacct shows for a cancelled job that never ran; None: its end (recorded)
    start_of_never_ran = PerRelease[str | None]({"22.05": None, "24.11": "None"})
    # sacct shows a held job at once, and a held array under its present name (recorded)
    accounts_held_jobs = PerRelease({"22.05": False, "24.11": True})
    # the text that sacct -B prints after the script (recorded)
    after_script = PerRelease({"22.05": "\n", "24.11": ""})
    # sinfo -O all prints an error, but still shows all fields (recorded)
    all_is_no_field = PerRelease({"22.05": False, "24.11": True})
    # fields that releases added to squeue -O (source: squeue/opts.c)
    squeue_fields_added = Added({"24.05": "excnodes"})
    squeue_fields_gone = Added({"23.02": "selectjobinfo"})
    # the form of ExitCode in squeue -O: the wait status, or CODE:SIGNAL (source: print.c, 23.02)
    squeue_exit_words = PerRelease({"22.05": False, "23.02": True})
    # the StdErr that is shown for a job without --error; None: its output file (recorded)
    stderr_in_squeue = PerRelease[str | None]({"22.05": None, "24.11": "(null)"})
    stderr_in_scontrol = PerRelease[str | None]({"22.05": None, "26.05": ""})
    # the words in scontrol show job and squeue that show whether a job shares its nodes (recorded)
    oversubscribe_words = PerRelease({"22.05": ("OK", "YES", "NO"), "26.05": ("NO", "YES", "NO")})
    sharing = PerRelease(
        {
            "22.05": "OverSubscribe={0} Contiguous=0 Licenses={2} Network=(null)",
            "26.05": "OverSubscribe={0} Exclusive={1} Contiguous=0 Licenses={2} LicensesAlloc={3} Network=(null)",
        }
    )
    # scontrol show job prints SubmitLine= (source: info_job.c, 25.11)
    has_submit_line = PerRelease({"22.05": False, "25.11": True})
    # the command that squeue -o %o shows for a job of salloc (recorded)
    salloc_has_command = PerRelease({"22.05": False, "24.11": True})
    # the format of sinfo --long (source: 23.02)
    sinfo_long = PerRelease(
        {
            "22.05": "%9P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N",
            "23.02": "%9P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %.11i %N",
        }
    )
    sinfo_letters_added = Added({"23.02": "i"})
    # the text that sinfo -o %b prints for nodes without features (recorded)
    no_active_features = PerRelease({"22.05": "", "24.11": "(null)"})
    # the states that sinfo --states accepts, in the order of sinfo's error message (recorded)
    node_states = PerRelease(
        {
            "22.05": (
                "unknown down idle allocated ? mixed future drain drained draining no_respond reserved perfctrs cloud "
                "completing powering_down powered_down power_down powering_up fail maint reboot reboot^ unknown"
            ),
            "24.11": (
                "unknown down idle allocated ? mixed future drain drained draining no_respond reserved planned blocked "
                "cloud completing powering_down powered_down power_down powering_up fail maint reboot reboot^"
            ),
            "26.05": (
                "unknown down idle allocated mixed future drain drained draining no_respond reserved planned blocked "
                "cloud completing powering_down powered_down power_down powering_up power_up inval fail maint reboot "
                "reboot^ external dynamic_future dynamic_norm"
            ),
        }
    )
    # a missing folder of an output file is created (release notes of 23.02)
    makes_output_folders = PerRelease({"22.05": False, "23.02": True})
    # the value of %a in the name of a step's output file, outside of arrays (recorded)
    no_array_index = PerRelease({"22.05": 4294967294, "26.05": 0})
    # %N in the name of a step's output file is the node's name, not the machine's (recorded)
    node_in_file_names = PerRelease({"22.05": False, "26.05": True})
    # the name of an output file may have %b: the index in the array modulo 10 (release notes of 24.11)
    has_index_digit = PerRelease({"22.05": False, "24.11": True})
    # StdOut and StdErr show the width that %8j asks for, and a single % for %% (source: job_info.c, 23.02)
    shows_widths = PerRelease({"22.05": False, "23.02": True})
    # the letters that StdOut and StdErr replace: in the end all, with the values of the batch script (26.05, tried)
    shown_letters = PerRelease({"22.05": "Aajux", "23.02": "Aabjux", "26.05": "AJNabjnstux"})
    # the name of GPUs in the TresPerTask of a step (recorded)
    gpu_of_task = PerRelease({"22.05": "gres:gpu:", "23.11": "gres/gpu="})
    # the name of GPUs in TresPerNode, TresPerJob and similar fields (source: xfmt_tres in slurm_opt.c, 23.11)
    gpu_prefix = PerRelease({"22.05": "gres:gpu:", "23.11": "gres/gpu:"})
    # the lines of requested and allocated TRES in scontrol show job (source: 23.02)
    tres_lines = PerRelease({"22.05": ("TRES",), "23.02": ("ReqTRES", "AllocTRES")})
    # the text after Comment= in scontrol show job (source: info_job.c, 25.11)
    after_comment = PerRelease({"22.05": " ", "25.11": ""})
    # the text that scontrol show job prints after each job (recorded)
    after_job = PerRelease({"22.05": "\n\n", "26.05": "\n"})
    # NumTasks= counts full nodes for a job with --ntasks-per-node and --ntasks (recorded)
    tasks_fill_nodes = PerRelease({"22.05": True, "24.11": False})
    # the line of power management in scontrol show job (source: removed in 24.05)
    power_line = PerRelease({"22.05": ("Power=",), "24.05": ()})
    # Command= in scontrol show job includes the script's arguments (recorded)
    command_has_arguments = PerRelease({"22.05": True, "24.11": False})
    # the N in NumNodes=1-N before the scheduler has tried the job (source: _pack_pending_job_details, 23.11);
    # without --nodes, this N is the number of tasks (source: job_mgr.c, 26.05)
    most_nodes_shown = PerRelease({"22.05": "", "23.11": "nodes", "26.05": "tasks"})
    # the last lines of scontrol show node (source: 23.02 and 24.05; 26.05 is recorded)
    resume_after = PerRelease(
        {"22.05": "", "23.02": " ResumeAfterTime=None", "26.05": " ResumeAfterTime=None SuspendTime=INFINITE"}
    )
    power_of_node = PerRelease(
        {
            "22.05": (
                "CapWatts=n/a",
                "CurrentWatts=0 AveWatts=0",
                "ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s",
            ),
            "24.05": ("CurrentWatts=0 AveWatts=0", ""),
            "26.05": ("CurrentWatts=0 AveWatts=0",),  # recorded
        }
    )
    # the lines of scontrol show partition (source: 23.02, 24.05, 26.05)
    exclusive_of_partition = PerRelease(
        {
            "22.05": "ExclusiveUser=NO",
            "24.05": "ExclusiveUser=NO ExclusiveTopo=NO",
            "26.05": "Exclusive=NO",
        }
    )
    most_cpus_of_partition = PerRelease(
        {
            "22.05": "MaxCPUsPerNode=UNLIMITED",
            "23.02": "MaxCPUsPerNode=UNLIMITED MaxCPUsPerSocket=UNLIMITED",
        }
    )
    node_sets_line = PerRelease({"22.05": (), "24.11": ("NodeSets=ALL",)})  # recorded
    # the schema that the JSON of Slurm's commands names (source: src/plugins/data_parser)
    data_parser = PerRelease(
        {
            "22.05": "v0.0.38",
            "23.11": "v0.0.40",
            "24.05": "v0.0.41",
            "24.11": "v0.0.42",
            "25.05": "v0.0.43",
            "25.11": "v0.0.44",
            "26.05": "v0.0.45",
        }
    )
    # the JSON of 26.05 has more keys, and lacks some others (recorded)
    json_of_26_05 = PerRelease({"22.05": False, "26.05": True})
    # numbers in JSON are {"set": ..., "number": ...}, and states are lists (release notes of 23.11)
    json_numbers_are_objects = PerRelease({"22.05": False, "23.11": True})
