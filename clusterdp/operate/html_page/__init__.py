"""HTML pages that need no network: the common parts of the pages of `clusterdp report` and `clusterdp rehearse`.

document  the template and the Content-Security-Policy of a page
bars      attempts as bars over time

base.css has the styles. timeline.html.j2 draws the bars.
"""
