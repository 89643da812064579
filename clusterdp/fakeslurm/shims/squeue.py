from client import run

run("squeue")
