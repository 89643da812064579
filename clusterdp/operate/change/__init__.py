"""The verbs that change a run: `cancel`, `stop` and `rm`, and the checks of `resume`.

cancel        `clusterdp cancel`
stop          `clusterdp stop`
end_sweep     all elements of a sweep cancelled, or stopped
remove        `clusterdp rm`
resume_check  what `clusterdp resume` checks before it submits
"""
