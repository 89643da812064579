"""Real data for the recipes, read from files in the form in which their authors publish them. No file is downloaded,
and no pickle is read.

bundled     tables that ship with scikit-learn (digits, diabetes)
images      images as input of LeNet: bytes of 32 x 32 pixels
text        characters: Python's own manual, or any text file
"""
