"""The verbs for a sweep as a whole. An element by itself is a run like any other.

elements  how each element stands, with one squeue for all
results   which elements are best, by a metric
watch     a sweep followed to its end, in one line of counts
"""
