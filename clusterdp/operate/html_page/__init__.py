"""HTML pages that need no network: the parts that are common to the pages of `clusterdp report` and `clusterdp
rehearse`.

base.css has the styles of all pages. timeline.html.j2 draws the timeline of attempts.
"""
