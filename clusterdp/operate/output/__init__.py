"""Text for terminals of any width, pipes and files.

formatting   times, sizes, numbers and colours
terminal     text without control characters, not wider than a terminal
output_file  the file that -o names, for report and plot
"""
