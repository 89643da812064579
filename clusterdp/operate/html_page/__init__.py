"""HTML pages that need no network: what the page of `clusterdp report` and that of `clusterdp rehearse` share.

document  the template, and what the page's Content-Security-Policy allows
bars      attempts as bars over time

base.css is the look. timeline.html.j2 draws the bars.
"""
