"""`clusterdp report`: runs as one HTML page that needs no network. It reads the run folders alone; Slurm is not asked.

page         the file: template, styles, scripts and data in one
run_view     what the page tells of a run

page.html.j2, page.css and page.js make the page. uplot/ is the plotting library µPlot with its licence, as released.
"""
