"""How a run stands: `clusterdp status` and `clusterdp watch`.

show_status  `clusterdp status`
follow       a run followed to its end
watch        `clusterdp watch`
"""
