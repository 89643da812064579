"""What changes a run: `cancel`, `stop` and `rm`, and what `resume` checks first.

cancel        `clusterdp cancel`
stop          `clusterdp stop`
end_sweep     all elements of a sweep cancelled, or stopped
remove        `clusterdp rm`
resume_check  what `clusterdp resume` checks before it submits
"""
