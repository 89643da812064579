"""Measurements of a step: how much time each of its parts takes."""
