"""Real data for the recipes, read from the files that their authors publish. No file is downloaded, no pickle is read.

bundled     tables that ship with scikit-learn (digits, diabetes)
images      images as input of LeNet: bytes of 32 x 32 pixels
text        characters: Python's own manual, or any text file
"""
