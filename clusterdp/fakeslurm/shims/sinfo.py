from client import run

run("sinfo")
