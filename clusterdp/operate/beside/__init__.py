"""Runs a program beside the ranks of a running job."""
