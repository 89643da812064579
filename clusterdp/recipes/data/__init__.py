"""Real data for the recipes, read from files in the form in which their authors publish them. No file is downloaded,
and no pickle is read."""
