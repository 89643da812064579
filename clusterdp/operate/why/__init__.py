"""Why a run waits, failed, or is over: `clusterdp why`, and what `status` says of it in one line.

show_why         `clusterdp why`: the screen and the JSON
first_failure    which rank failed first, and by which evidence
failure_words    a failure in words
match            finding errors in lines, and known ones among them
signatures       the failures that are known: a table with cause, remedy and a real output of each
signature        what a line of that table has
"""
