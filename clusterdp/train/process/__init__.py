"""The life of a rank's process, from its environment to the outcome of its attempt.

attempt            one attempt: the rendezvous, the claim, the user's function, the outcome
entry              the user's function, and whether it takes its params
own_job            the job of a script that runs without the worker
batch_size_search  the entry, measured with twice the batch again and again
"""
