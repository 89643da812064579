"""The metrics of runs as numbers, curves and differences: `clusterdp plot` and `clusterdp diff`.

curves  what a run measured, over all attempts
plot    `clusterdp plot`
diff    `clusterdp diff`
"""
