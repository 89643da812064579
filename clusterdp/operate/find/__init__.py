"""Which run the user means.

find_run   which run the user means
run_index  the index of the user's runs
"""
