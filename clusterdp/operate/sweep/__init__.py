"""The verbs for a whole sweep. A single element of a sweep is an ordinary run.

elements  the state of each element, with one squeue for all
results   the elements ordered by a metric
watch     `clusterdp watch` of a sweep, in one line of counts
"""
