"""Finds facts about a program in its source text, without running the program. No module is imported, and no shell is
started.

read_program   read_program, read_script, read_python_file: from a command, from bash lines, from a Python file
command_words  the Python file that the words of a command run
shell_lines    the commands of a shell script, line by line
sources        the Python files of a program: the first file, and the imported files of its folder
source         Source: one Python file with the facts of its syntax tree
fixed_ports    ports that are hard-coded
"""

from clusterdp.check.program.read_program import read_program, read_python_file, read_script
from clusterdp.check.program.source import CodePlace, ProgramText

__all__ = ["CodePlace", "ProgramText", "read_program", "read_python_file", "read_script"]
