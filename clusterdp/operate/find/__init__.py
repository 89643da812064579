"""Which runs the user means, and since when.

find_run   which run the user means
run_index  the index of the user's runs
since      the time that --since names
"""
