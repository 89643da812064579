"""The options of resources.extra that sbatch has in no release. A plugin of the site (SPANK) may have added them."""

from __future__ import annotations

from collections.abc import Iterator

from clusterdp.check.finding import Finding
from clusterdp.check.subject import Subject
from clusterdp.wording import did_you_mean

# Of 20.11 to 26.05.
KNOWN = frozenset(
    """
    account acctg-freq array batch bb bbf begin chdir cluster cluster-constraint clusters comment
    consolidate-segments constraint container container-id container-type context contiguous core-spec
    cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude
    exclusive export export-file external extra extra-node-info get-user-env gid gpu-bind gpu-freq gpus
    gpus-per-node gpus-per-socket gpus-per-task gres gres-flags help hint hold ignore-pbs input job-name
    kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mem-update
    mincpus network nice no-kill no-requeue nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu
    ntasks-per-node ntasks-per-socket oom-kill-step open-mode output overcommit oversubscribe parsable partition
    power prefer priority profile propagate qos quiet reboot requeue reservation resources resv-ports segment signal
    sockets-per-node spread-job spread-segments stepmgr switches tasks-per-node test-only thread-spec
    threads-per-core time time-min tmp tres-bind tres-per-task uid usage use-min-nodes verbose version wait
    wait-all-nodes wckey wrap
    """.split()
)


def option_findings(subject: Subject) -> Iterator[Finding]:
    for option in subject.config.resources.extra:
        # sbatch takes the beginning of a name, too.
        if not any(known.startswith(option) for known in KNOWN):
            meant = did_you_mean(option, KNOWN, "Remove it, or look for its name in `sbatch --help`.")
            why = "sbatch refuses it, unless a plugin of this site has it"
            yield Finding("warning", f"resources.extra.{option}", f"sbatch has no option --{option}", why, meant)
