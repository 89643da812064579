"""The state of a run: `clusterdp status` and `clusterdp watch`.

show_status  `clusterdp status`
follow       the updates of a run until its end
watch        `clusterdp watch`
"""
