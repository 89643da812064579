"""How a run stands: `clusterdp status` and `clusterdp watch`.

show_status  `clusterdp status`
run_data     what --json says of a run; json.schema.json beside it has the keys of all verbs
follow       a run followed to its end
watch        `clusterdp watch`
"""
