"""What the engine is asked to make: golden files of the very JSON that docker-py sends."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest

from carme_hub.containers.runtime import Bind
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request
from carme_hub.spawners.docker.container import ContainerDefaults, ContainerOwner, ContainerSpec, render

GOLDEN = Path(__file__).parent / "golden" / "docker.json"

PLAIN = ContainerSpec(
    owner=ContainerOwner("carme", "0123456789abcdef", "alice", "", "11111111-2222-3333-4444-555555555555"),
    defaults=ContainerDefaults(),
    request=Request("cpu", "lab", cpus=2, memory_mib=4096),
    name="carme-alice",
    image="site/lab:1",
    command=("jupyterhub-singleuser",),
    user="1000:100",
    home=("carme-home-alice", "/home/jovyan"),
    workdir="/home/jovyan",
    ends=1795230000,
    port=8888,
    environ={"JUPYTERHUB_API_TOKEN": "secret", "HOME": "/home/jovyan"},
)
CASES = {
    "no GPU": PLAIN,
    "two GPUs of a system user": replace(
        PLAIN,
        request=Request("gpu", "lab", Gpus("a100", 2), 8, 65536),
        gpus=("GPU-8f3c", "GPU-77d0"),
        user="2001:2001",
        groups=(3000, 3001),
        home=("/home/alice", "/home/alice"),
        binds=(Bind("/scratch", "/scratch", "rw"), Bind("/data", "/data")),
        defaults=ContainerDefaults(network="carme", publish=False, tmp_mib=1024, shm_mib=32768, processes=8192),
    ),
    "a writable layer and virtual GPUs on the host's network": replace(
        PLAIN,
        request=Request("gpu", "lab", Gpus("a100", 1), 1, 1024),
        gpus=("3",),
        port=43210,
        defaults=ContainerDefaults(network="host", publish=False, read_only=False, virtual=True),
    ),
}


def sent(wanted: ContainerSpec) -> dict[str, Any]:
    """Return the JSON that docker-py would post."""
    client = docker.APIClient(base_url="unix:///nowhere", version="1.41")
    create, host = render(wanted)
    name = create.pop("name")
    body = client.create_container_config(**create, host_config=client.create_host_config(**host))
    client.close()
    return {"name": name, **{key: value for key, value in sorted(body.items()) if value is not None}}


def test_what_is_sent_is_what_the_golden_file_says() -> None:
    seen = {name: sent(wanted) for name, wanted in CASES.items()}
    if os.environ.get("CARME_WRITE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(json.dumps(seen, indent=1) + "\n")
    assert seen == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("name", CASES)
def test_every_container_is_hardened(name: str) -> None:
    host = sent(CASES[name])["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["IpcMode"] == "private"
    assert host["Memory"] == host["MemorySwap"] > 0
    assert host["PidsLimit"] > 0
    assert host["NanoCpus"] > 0
    assert not host.get("Privileged")
    assert "CapAdd" not in host
    assert "Devices" not in host
    assert sent(CASES[name])["User"].split(":")[0] not in ("", "0", "root")


def test_gpus_are_asked_for_as_docker_run_does() -> None:
    [devices] = sent(CASES["two GPUs of a system user"])["HostConfig"]["DeviceRequests"]
    assert devices == {
        "Driver": "",
        "Count": 0,
        "DeviceIDs": ["GPU-8f3c", "GPU-77d0"],
        "Capabilities": [["gpu"]],
        "Options": {},
    }


def test_an_image_that_asks_for_all_gpus_gets_none() -> None:
    environ = dict(pair.split("=", 1) for pair in sent(CASES["no GPU"])["Env"])
    assert environ["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert environ["CUDA_VISIBLE_DEVICES"] == ""
    asked = replace(CASES["two GPUs of a system user"], environ={"NVIDIA_VISIBLE_DEVICES": "all"})
    environ = dict(pair.split("=", 1) for pair in sent(asked)["Env"])
    assert environ["NVIDIA_VISIBLE_DEVICES"] == "GPU-8f3c,GPU-77d0"
    assert "CUDA_VISIBLE_DEVICES" not in environ
