"""The output of a rehearsal.

screen   the table, while it runs
outcome  the sentence at the end, and rehearsal.json
page     rehearsal.html
"""
