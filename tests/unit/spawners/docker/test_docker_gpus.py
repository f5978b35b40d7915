"""The GPUs of one box: how they are listed, named, given and shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.availability import estimate_start, sentence
from carme_hub.domain.sessions.session import Request
from carme_hub.errors import ConfigError, EngineUnreachable, Refused
from carme_hub.spawners.docker.engine import Container
from carme_hub.spawners.docker.gpu_allocation import (
    Box,
    Gpu,
    check_types,
    conflict,
    detect_gpus,
    parse_gpus,
    read_list,
    type_of,
)

FOUR = tuple(Gpu(f"GPU-{n}", "a100") for n in range(4))
MIG = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 1g.5gb      Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 3g.20gb     Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 1: NVIDIA RTX A6000 (UUID: GPU-aaaa0000-0000-0000-0000-000000000001)
"""


def request(gpus: int = 1, type: str = "a100", cpus: int = 1, gib: int = 1) -> Request:
    return Request("gpu", "lab", Gpus(type, gpus) if gpus else Gpus(), cpus, gib * 1024)


def container(
    *gpus: str, id: str = "c", state: str = "running", ends: int = 0, cpus: int = 1, gib: int = 1
) -> Container:
    labels = {
        "carme.session": id,
        "carme.gpus": ",".join(gpus),
        "carme.ends": str(ends),
        "carme.cpus": str(cpus),
        "carme.memory-mib": str(gib * 1024),
    }
    return Container(id, state, 0.0, labels)


def box(gpus: tuple[Gpu, ...] = FOUR) -> Box:
    return Box(16, 64 * 1024, gpus)


@pytest.mark.parametrize(
    ("name", "type"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla T4", "t4"),
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("NVIDIA GeForce GTX 1080 Ti", "gtx1080ti"),
        ("NVIDIA TITAN V", "titanv"),
        ("Quadro RTX 8000", "rtx8000"),
        ("Something New", "something-new"),
    ],
)
def test_types_are_called_as_people_call_them(name: str, type: str) -> None:
    assert type_of(name) == type


def test_a_gpu_that_is_cut_into_mig_devices_is_given_in_pieces() -> None:
    assert [(gpu.id[:8], gpu.type) for gpu in read_list(MIG)] == [
        ("MIG-c6d4", "a100_1g.5gb"),
        ("MIG-cba6", "a100_3g.20gb"),
        ("GPU-aaaa", "a6000"),
    ]


def test_a_driver_that_says_something_else_stops_the_hub_with_a_way_out(tmp_path: Path) -> None:
    broken = tmp_path / "nvidia-smi"
    broken.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    broken.chmod(0o755)
    with pytest.raises(ConfigError, match=r"version mismatch.*c\.CarmeDockerSpawner\.gpus"):
        detect_gpus(str(broken))
    with pytest.raises(ConfigError, match="No devices"):
        read_list("No devices were found\n")
    assert detect_gpus(str(tmp_path / "none")) == ()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"id": "0"}], "must be like"),
        ([{"id": "0,1", "type": "a100"}], "must be like"),
        ([{"id": "all", "type": ""}], "not a name"),
        ([{"id": "0", "type": "a100", "x": 1}], "must be like"),
        ([{"id": "0", "type": "a100"}, {"id": 0, "type": "a100"}], "twice"),
        ([{"id": "0", "type": "a100"}, {"id": "GPU-1", "type": "a100"}], "mixes"),
    ],
)
def test_a_list_that_could_name_a_gpu_twice_is_refused(entries: list[dict[str, object]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_gpus(entries)


def test_a_profile_for_gpus_that_are_not_there_stops_the_hub() -> None:
    with pytest.raises(ConfigError, match="gpu offers h100, and this machine has a100"):
        check_types(FOUR, {"gpu": {"a100", "h100"}})


def test_what_containers_hold_is_not_given_again_whatever_their_state() -> None:
    others = [container(f"GPU-{n}", state=state) for n, state in enumerate(["running", "created", "paused"])]
    assert box().choose(request(1), others) == ("GPU-3",)
    assert box().choose(request(1), [container("GPU-0", state="exited")]) == ("GPU-0",)
    with pytest.raises(Refused, match=r"2 × a100 cannot be allocated now: 1 of 4 a100 free\."):
        box().choose(request(2), others)


def test_cpus_and_memory_are_given_once_too() -> None:
    assert box().choose(request(0, cpus=16, gib=64), []) == ()
    with pytest.raises(Refused, match=r"2 CPUs and 1 GiB of memory cannot be allocated now: 1 CPU and 63 GiB are free"):
        box().choose(request(0, cpus=2), [container(cpus=15)])
    with pytest.raises(Refused, match="4 GiB are free"):
        box().choose(request(0, gib=5), [container(gib=60)])


def test_no_gpu_is_given_while_one_is_held_under_another_kind_of_name() -> None:
    with pytest.raises(Refused, match="GPU 0 was allocated by another kind of id"):
        box().choose(request(1), [container("0")])
    assert box().choose(request(1), [container("0", state="exited")]) == ("GPU-0",)
    assert box().choose(request(1), [container("GPU-removed")]) == ("GPU-0",)


def test_two_containers_with_one_gpu_are_seen() -> None:
    mine, other = container("GPU-0", "GPU-1", id="mine", state="created"), container("GPU-1", id="other")
    assert conflict("mine", [mine, other]) == ("GPU-1",)
    assert conflict("mine", [mine, container("GPU-1", id="other", state="exited")]) == ()
    with pytest.raises(EngineUnreachable):
        conflict("mine", [other])


@pytest.mark.parametrize(
    ("asked", "held", "said"),
    [
        (request(2), [], "4 of 4 a100 free; starts now"),
        (
            request(3),
            [("GPU-0", "GPU-1")],
            "2 of 4 a100 free; enough by 1000 at the latest, by the time limits of others",
        ),
        (request(5), [], "4 of 4 a100 free; this machine is too small for 5 × a100 with 1 CPU and 1 GiB"),
        (request(1, cpus=16), [("GPU-0",)], "3 of 4 a100 free; but not 16 CPUs and 1 GiB beside them now"),
        (request(0, cpus=16), [()], "15 of 16 CPUs free; not enough for 16 CPUs and 1 GiB now"),
    ],
)
def test_the_form_says_what_is_free_and_promises_no_queue(
    asked: Request, held: list[tuple[str, ...]], said: str
) -> None:
    others = [container(*ids, id=f"c{n}", ends=1000) for n, ids in enumerate(held)]
    cluster = box().as_cluster(others, seen=500.0)
    seen = estimate_start(cluster, asked, 500.0)
    assert sentence(cluster, asked, seen, lambda moment: f"{moment:.0f}") == said
