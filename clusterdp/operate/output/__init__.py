"""Text output for terminals of any width, for pipes and for files.

formatting   times, sizes, numbers and colours
terminal     text without control characters, not wider than a terminal
output_file  the file that -o names, for report and plot
"""
