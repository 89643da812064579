"""Whole programs of many habits and libraries that lose nothing: no drill may fail.

table  how each is run, and the libraries that it needs
"""
