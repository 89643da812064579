"""Facts on a program's own text, without running it. Nothing is imported, and no shell is started.

look_at        look_at, look_at_script, look_at_file: from a command, from bash lines, from a Python file
command_words  which Python file the words of a command run
shell_lines    the commands of a shell script, line by line
sources        the Python files of a program: the first one, and those of the folder that it imports
source         Source: one of them, with what is asked of its syntax tree
opened_paths   the files that it opens
fixed_facts    ports, devices and loader workers that are hard-coded
"""

from clusterdp.check.program.look_at import look_at, look_at_file, look_at_script
from clusterdp.check.program.source import CodePlace, PathUse, ProgramText

__all__ = ["CodePlace", "PathUse", "ProgramText", "look_at", "look_at_file", "look_at_script"]
