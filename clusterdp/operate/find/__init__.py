"""Finds the runs and the times that the user names on the command line.

find_run   the run that the user names
run_index  the index of the user's runs
since      the time that --since names
"""
