"""Accounting, which runs in the controller's process, and keeps jobs that the controller has deleted."""
