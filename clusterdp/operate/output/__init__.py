"""How text is printed or written: for terminals of any width, pipes and files.

formatting   tables, times, sizes and colours
terminal     text without control characters, no wider than a terminal
output_file  the file that -o names, of report and plot
"""
