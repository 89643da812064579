"""Makes train.xyz, for MACE: four atoms of copper in sixty places, with the energies and forces of ASE's own model."""

import numpy as np
from ase import Atoms
from ase.calculators.emt import EMT
from ase.io import write

dice = np.random.default_rng(1)
places = np.array([[0, 0, 0], [2.5, 0, 0], [0, 2.5, 0], [0, 0, 2.5]])
frames = []
for _ in range(60):
    frame = Atoms("Cu4", positions=places + dice.normal(0, 0.1, (4, 3)), calculator=EMT())
    frame.info["REF_energy"], frame.arrays["REF_forces"] = frame.get_potential_energy(), frame.get_forces()
    frame.calc = None
    frames.append(frame)
write("train.xyz", frames)
