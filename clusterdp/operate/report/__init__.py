"""`clusterdp report`: runs as one HTML page that needs no network. It reads only the run folders, and never asks Slurm.

page         the file with template, styles, scripts and data
run_view     the content of the page about a run

page.html.j2, page.css and page.js make the page. uplot/ is the plotting library µPlot with its licence, unchanged.
"""
