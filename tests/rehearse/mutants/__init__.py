"""Whole programs of others' styles, each with one fault, and what a rehearsal must find in them.

table  which drill finds each, and the words that name it rightly or wrongly
"""
