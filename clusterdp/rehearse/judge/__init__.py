"""From what a run has left to the verdict on its drill.

judge          whether it has passed
reference      the undisturbed run, with which that of a drill is compared
compared       what of it was compared, and what was not
verdict        what is told of a drill
lost_work      of these, steps that had been saved before the fault
failed_drill   what the diagnosis is made from
diagnosis      what is wrong with a job that has failed
signal_faults  with its handlers, by what they are and what came of the signal
resumed_from   with the checkpoint that it went on from
after_fault    what it resumed from, and what differs since which step
lost_state     with what its checkpoints keep
second_run     what the undisturbed runs alone show: a shared port or file
"""
