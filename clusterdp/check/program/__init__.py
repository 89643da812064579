"""Finds facts about a program in its source text, without running the program. No module is imported, and no shell is
started."""

from clusterdp.check.program.read_program import read_program, read_python_file, read_script
from clusterdp.check.program.source import CodePlace, ProgramText

__all__ = ["CodePlace", "ProgramText", "read_program", "read_python_file", "read_script"]
