"""Rehearsing a job: it runs here, short, on a fake cluster, undisturbed and under each drill, and must end the same.

rehearsal     the whole of it: the undisturbed runs, then the drills
shortening    what of the config is other
run_process   a run in a process of its own
one_run       what runs in there
run_spec      what the two tell each other
job_cluster   a fake cluster on which this job can run; also that of --cluster local
grace         the grace time of preemptions
small_disk    a disk that may be filled
warm_up       how many steps its learning rate rises at first
observer      what an undisturbed run does that the drills need to know
scene         a run as a drill sees it and breaks it
processes     the ranks on this machine
not_landed    why a fault has not landed
slurm_cluster  a real Slurm, with the faults that a user may cause there
drills/       what is done to a run, and the proof that it was done
state/        what a run has left at its end, and how two such states differ
inotify       the kernel's account of files
file_watch    what a run does with its checkpoints, by that account
file_use      what was done to one of them
printed_steps  the steps that a program prints
steps_lost    steps that were done twice
judge         from what a run has left to the verdict
diagnosis     what is wrong with a job that has failed
signal_faults   with its handlers, by what they are and what came of the signal
resumed_from    with the checkpoint that it went on from
lost_state      with what its checkpoints keep
program_parts   what it makes that has a state, by its text
beside        what two undisturbed runs show: a port or a file of both, ranks that write over each other
verdict       a drill's
attempt_rows  the attempts of a run, as the outcome tells of them
outcome       the sentence at the end, rehearsal.json, and its page
page          the page, rehearsal.html
screen        what is shown meanwhile
"""
