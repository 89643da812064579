"""Options of command lines and #SBATCH lines: their names, values, and the JobDesc that they make."""
