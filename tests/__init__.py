"""The tests mirror the package; `golden`, `e2e`, `slurm` (a real one), `gpu` and `benchmarks` stand beside them."""
