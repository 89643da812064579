"""The metrics of runs as numbers, curves and differences: `clusterdp plot` and `clusterdp diff`.

curves  the metrics of a run by step, over all attempts
plot    `clusterdp plot`
diff    `clusterdp diff`
"""
