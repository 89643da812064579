"""Trainings that know nothing of clusterdp.

train       a small one that survives every drill
faults      others of it, with one fault each
odd         others of it, with an odd habit each, which is none
correct/    whole programs of many habits and libraries
foreign     programs that others have published
tiny_bert, tiny_gpt2  make data for those
"""
