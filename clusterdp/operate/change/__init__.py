"""The verbs that change a run: `cancel`, `stop` and `rm`, and the checks before `resume`.

cancel        `clusterdp cancel`
stop          `clusterdp stop`
end_sweep     `clusterdp cancel` and `clusterdp stop` of a whole sweep
remove        `clusterdp rm`
resume_check  the checks of `clusterdp resume` before its submit
"""
