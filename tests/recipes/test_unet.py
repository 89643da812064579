"""The U-Net on noisy digits: two inputs and skip connections, split over the devices of a rank."""

from __future__ import annotations

from clusterdp.train import JobHandle
from configs import unet


def test_unet_recipe_removes_noise(job: JobHandle) -> None:
    assert unet.main(job, epochs=2) < 0.06, "untrained, it is off by 0.19"
