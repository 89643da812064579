"""The verbs that change a run: `cancel`, `stop` and `rm`, and the checks before `resume`."""
