"""`clusterdp report`: runs as one HTML page that needs no network. It reads the run folders alone; Slurm is not asked.

page         the file: template, styles, scripts and data in one
run_view     what the page tells of a run
timeline     the attempts as bars over time
rank_times   where the time of a step goes, by rank
checkpoints  which checkpoints were saved, and which are there
source       the code that ran: commit and difference
differences  what differs between several runs
chart_data   the curves, thinned to what a screen can show

page.html.j2, page.css and page.js make the page. uplot/ is the plotting library µPlot with its licence, as released.
"""
