"""The life of a rank's process, from its environment to the outcome of its attempt.

attempt        one attempt: the rendezvous, the claim, the user's function, the outcome
entry          loads the user's function and checks its params
standby        a process that waits to become a rank
launch         launch(): a function in several ranks on this machine
launched_rank  the process of one of these ranks
own_job        the job of a script that runs without the worker
"""
