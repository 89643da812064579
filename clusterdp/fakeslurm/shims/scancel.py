from client import run

run("scancel")
