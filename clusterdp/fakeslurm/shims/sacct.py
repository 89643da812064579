from client import run

run("sacct")
