"""The verdict on a drill, from the files and records that its run has left.

judge          whether a drill has passed
reference      the undisturbed run, with which a drill's run is compared
compared       the files of a run that were compared, and those that were not
verdict        the fields of a verdict
lost_work      steps that had been saved before the fault, and were done again
failed_drill   the input of the diagnosis
diagnosis      the faults of a job that has failed, in words
signal_faults  faults of its signal handlers, by their kind and their effect
resumed_from   faults in its choice of a checkpoint to resume from
after_fault    the files that it resumed from, and the first step that differs
lost_state     faults in the content of its checkpoints
second_run     faults that the undisturbed runs alone show: a shared port or file
"""
