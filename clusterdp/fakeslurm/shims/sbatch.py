from client import run

run("sbatch")
