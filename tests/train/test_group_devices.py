"""The devices and the backend of a rank's process group, in the environments of several releases of Slurm."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from clusterdp.batch.decide.evidence import OUT_OF_MEMORY
from clusterdp.errors import ClusterdpError, ConfigError, RendezvousError
from clusterdp.fakeslurm.core.job_environ import MARK
from clusterdp.slurm.env import FAKE_MARK, SlurmEnv
from clusterdp.train.process.attempt import refuse
from clusterdp.train.ranks import group as group_module
from clusterdp.train.ranks.group import Group, _serve, own_devices
from clusterdp.train.ranks.rendezvous import GpuMissing, Rendezvous
from tests.ports import free_port
from tests.slurm_types.test_env import RECORDS, STEP

RELEASES = ("22.05", "24.11", "26.05")
RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "SLURM_STEP_GPUS": "0,1"}


def test_mean_returns_after_gloo_has_freed_its_work(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """A work that is freed while the interpreter exits aborts the process."""
    reduced, all_reduce = [], dist.all_reduce
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, **more: (reduced.append(tensor), all_reduce(tensor, **more)))
    for _ in range(2000):  # 40 of them failed
        group.mean(1.0)
        assert reduced.pop()._use_count() == 1


def place_of(local: int, size: int) -> Rendezvous:
    return Rendezvous(local, size, local, size, 0, "127.0.0.1", 1)


@pytest.mark.parametrize(
    ("seen", "local", "size", "per_task", "expected"),
    [
        (0, 1, 2, None, ["cpu"]),
        (4, 3, 4, None, ["cuda:3"]),
        (8, 1, 4, None, ["cuda:2", "cuda:3"]),
        (1, 1, 2, None, ["cuda:0"]),  # both share it
        (1, 3, 4, 1, ["cuda:0"]),  # Slurm shows each task its own
        (2, 1, 2, 2, ["cuda:0", "cuda:1"]),
        (4, 1, 2, 2, ["cuda:2", "cuda:3"]),  # --gpu-bind=none shows all
        (4, 2, 3, None, ["cuda:2"]),
    ],
)
def test_rank_has_its_own_share_of_visible_gpus(
    monkeypatch: pytest.MonkeyPatch, seen: int, local: int, size: int, per_task: int | None, expected: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    assert own_devices(place_of(local, size), per_task) == [torch.device(name) for name in expected]


@pytest.mark.parametrize("release", RELEASES)
def test_recorded_task_environments_give_gpus_per_task(release: str) -> None:
    environments = json.loads((RECORDS.parent / release / "gpus.json").read_text())["env"]
    tasks = {name: SlurmEnv.read(env) for name, env in environments.items() if " task " in name}
    assert {name: env.gpus_per_task for name, env in tasks.items() if env.gpus_per_task} == {
        name: 1 for name in tasks if "gpus-per-task-1" in name
    }
    assert {env.gives_gpus for name, env in tasks.items() if "gpus-2" in name} == {True}


@pytest.mark.parametrize(
    "tres", ["cpu=4,gres/gpu=2", "gres/gpu:a100=2", "cpu:4,gres:gpu:2", "gres/gpu:2", "gres:gpu:a100:2"]
)
def test_gpus_per_task_is_read_from_tres_per_task(tres: str) -> None:
    assert SlurmEnv.read({**STEP, "SLURM_TRES_PER_TASK": tres}).gpus_per_task == 2


def test_gpus_per_task_of_an_agent_are_not_those_of_its_ranks() -> None:
    ranks = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    environ = {**STEP, "SLURM_GTIDS": "0", "SLURM_GPUS_PER_TASK": "4", **ranks}
    assert SlurmEnv.read(environ).gpus_per_task is None


@pytest.mark.parametrize(
    ("environ", "gives"),
    [
        ({}, False),
        ({"SLURM_STEP_GPUS": "0"}, True),
        ({"SLURM_GPUS_ON_NODE": "2"}, True),
        ({"SLURM_GPUS_ON_NODE": "0"}, False),
        ({"SLURM_STEP_GPUS": "0", FAKE_MARK: "conf"}, False),
    ],
)
def test_slurm_env_gives_gpus_of_a_real_slurm_only(environ: dict[str, str], gives: bool) -> None:
    assert SlurmEnv.read({**STEP, **environ}).gives_gpus is gives
    assert MARK == FAKE_MARK


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rendezvous]:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "TORCHELASTIC_", FAKE_MARK)):
            monkeypatch.delenv(name)
    for name, value in RANK.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    yield place_of(0, 1)
    if dist.is_initialized():
        dist.destroy_process_group()


def test_rank_without_its_gpus_refuses_to_train_on_the_cpu(rank: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(
        RendezvousError, match=r"rank 0: Slurm gave it GPUs \(SLURM_STEP_GPUS=0,1\), and torch sees none"
    ):
        Group.start(rank)


def test_torch_built_for_cpus_is_a_config_error_beside_allocated_gpus(
    rank: Rendezvous, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same on each node, so that another attempt would end so, too."""
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(ConfigError, match=r"is built for CPUs. Install a torch for these GPUs\. To train on CPUs"):
        Group.start(rank)


@pytest.mark.parametrize("fake", [True, False])
def test_rank_without_its_gpus_trains_on_the_fake_or_with_gloo(
    rank: Rendezvous, monkeypatch: pytest.MonkeyPatch, fake: bool
) -> None:
    if fake:
        monkeypatch.setenv(FAKE_MARK, "conf")
    assert Group.start(rank, backend=None if fake else "gloo").device == torch.device("cpu")


@pytest.mark.parametrize(("address", "serves"), [("127.0.0.1", True), ("::1", False)])
def test_rank_0_serves_the_store_over_ipv4_unless_an_address_is_ipv6(address: str, serves: bool) -> None:
    place = replace(place_of(0, 1), master_addr=address, master_port=free_port())
    store = _serve(place, timedelta(seconds=60))
    assert (store is not None) is serves
    if store is not None:
        with socket.create_connection((address, place.master_port)) as client:
            assert client.family == socket.AF_INET
        with socket.socket(socket.AF_INET6) as client:
            assert client.connect_ex(("::1", place.master_port)) != 0


@pytest.mark.parametrize(("rank_number", "agent"), [(1, "False"), (0, "True")])
def test_store_is_served_by_rank_0_unless_torchrun_serves_it(
    rank_number: int, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", agent)
    place = replace(place_of(0, 2), rank=rank_number)
    assert _serve(place, timedelta(seconds=60)) is None


def test_backend_may_be_named_by_device(rank: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_STEP_GPUS")
    assert Group.start(rank, backend="cpu:gloo,cuda:gloo").backend == "cpu:gloo,cuda:gloo"


@pytest.mark.parametrize("backend", ["ncll", "cpu:gloo,cuda:ncll"])
def test_unknown_backend_is_a_config_error(rank: Rendezvous, backend: str) -> None:
    with pytest.raises(ConfigError, match=rf"train.backend: '{backend}' is not known to torch."):
        Group.start(rank, backend=backend)


@pytest.mark.parametrize(
    ("cards", "why"),
    [
        (["a n1/0:1:0", "b n1/0:2:0", "c n2/0:1:0"], ""),
        (["a n1/0:1:0", "none"], "rank 1 sees no GPU"),
        (["a n1/0:1:0", "b n1/0:2:0", "b n9/0:2:0"], "ranks 1 and 2 share one GPU"),  # a container has its own name
        (["a n1/0:1:0", "b n1/0:1:0"], "ranks 0 and 1 share one GPU"),  # two MIG slices of it
    ],
)
def test_ranks_without_a_gpu_each_exchange_over_gloo(
    monkeypatch: pytest.MonkeyPatch, cards: list[str], why: str
) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert group_module._why_not_nccl(cards) == why


def test_gpu_ranks_exchange_cpu_tensors_over_gloo(rank: Rendezvous) -> None:
    """Offloaded parameters and their norms are on the CPU."""
    assert group_module._agree_on_backend(dist.HashStore(), rank, torch.device("cuda:0")) == "cpu:gloo,cuda:nccl"


def test_card_names_gpu_by_uuid_and_place_on_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    about = SimpleNamespace(uuid="GPU-1", pci_domain_id=0, pci_bus_id=27, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    monkeypatch.setattr(socket, "gethostname", lambda: "n1")
    assert group_module._card(torch.device("cuda:0")) == "GPU-1 n1/0:27:0"
    del about.pci_bus_id  # an older torch
    assert group_module._card(torch.device("cuda:0")) == "GPU-1 GPU-1"


@pytest.mark.parametrize(
    ("visible", "expected"), [("MIG-a,MIG-b", "MIG-b"), ("0,1", "0,1"), ("MIG-a", "MIG-a"), (None, None)]
)
def test_each_rank_chooses_a_mig_slice(
    rank: Rendezvous, monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: str | None
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    group_module._choose_mig_slice(3)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == expected


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("NCCL error: Cuda failure 2 'out of memory'"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
    ],
)
def test_error_of_each_library_with_full_gpu_memory_is_out_of_memory(error: RuntimeError, full: bool) -> None:
    assert bool(OUT_OF_MEMORY.search(f"{type(error).__name__}: {error}")) is full


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (GpuMissing("rank 2: no GPU"), "n3\n\nrank 2: no GPU\n2\n"),
        (ConfigError("train.backend: 'x'"), "n3\n\ntrain.backend: 'x'\n2\n"),
        (RendezvousError("no rendezvous at n1:4711"), None),  # another rank may be to blame
    ],
)
def test_refusal_before_the_rendezvous_notes_its_error_and_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: ClusterdpError, note: str | None
) -> None:
    """`clusterdp why` prints it, and the next attempt avoids the node."""
    place = {"RANK": "2", "WORLD_SIZE": "4", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n3"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "attempts" / "7.0"
    folder.mkdir(parents=True)
    (folder / "outcome").write_text("stop entry 0\n")  # of rank 0, for which the others wait
    assert refuse(error, tmp_path) == error.exit_code
    assert (folder / "error").exists() is (note is not None)
    assert note is None or (folder / "error").read_text() == note
