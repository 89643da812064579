"""`clusterdp report`: writes runs as one HTML page that needs no network. Only the run folders are read; Slurm is never
asked.

page.html.j2, page.css and page.js are the page's template, styles and script. uplot/ has an unchanged copy of the
plotting library µPlot, with its licence.
"""
