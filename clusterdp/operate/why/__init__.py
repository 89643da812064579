"""`clusterdp why`: finds the reason why a run waits, failed, or is over. `clusterdp status` prints the reason in one
line.

show_why         `clusterdp why`: the screen and the JSON
first_failure    the rank that failed first, and the evidence
failure_words    a failure in words
match            finds errors, and known ones among them, in the end of a log
signatures       a table of known failures with cause, remedy and a real output of each
signature        a row of that table
"""
