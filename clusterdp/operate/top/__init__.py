"""`clusterdp top`: all runs on one screen, with Textual.

A *source* (source.py) reads the runs of one host and runs verbs on them. The rest of this folder knows only sources.
"""
