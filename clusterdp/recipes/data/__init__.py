"""Real data for the recipes, read from the files as their authors publish them. No file is downloaded, no pickle read.

bundled     tables that ship with scikit-learn (digits, diabetes)
images      any of these, as LeNet takes them: bytes of 32 x 32 pixels
text        characters: Python's own manual, or any text file
"""
