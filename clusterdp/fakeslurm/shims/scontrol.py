from client import run

run("scontrol")
