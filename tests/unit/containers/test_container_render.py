"""Each runtime's command line is what the golden files say, and says no to what that runtime cannot do.

After a wanted change: ``CARME_GOLDEN=1 pytest tests/unit/containers`` writes them again; read the difference.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from carme_hub.containers.registry import RUNTIMES, runtime
from carme_hub.containers.runtime import Bind, ContainerRequest, Format, Image
from carme_hub.errors import ConfigError, ContainerError

GOLDEN = Path(__file__).parent / "golden"
PATHS: dict[Format, str] = {
    "dir": "/store/lab",
    "sqfs": "/store/lab.sqsh",
    "sif": "/store/lab.sif",
    "ref": "localhost/lab:1",
}
PLAIN = ContainerRequest(
    image=Image("lab", ""),
    argv=("python3", "-I", "/home/alice/.carme/sessions/u/carme-singleuser"),
    home="/home/alice",
    session_folder="/home/alice/.carme/sessions/u",
    user="alice",
    uid=2001,
    gid=2001,
    environ={"CARME_SESSION_FOLDER": "/home/alice/.carme/sessions/u"},
    pass_env=("SLURM_JOB_ID",),
)
EVERYTHING = dataclasses.replace(
    PLAIN,
    binds=(Bind("/scratch/alice", "/scratch", "rw"), Bind("/data/sets", "/data", "rw")),
    environ={"OMP_NUM_THREADS": "4", "QUOTED": 'a,b "c" $(touch x)'},
    workdir="/scratch/work",
    gpus=True,
    root="ro",
    tmp_mib=512,
    session_folder="/shared/sessions/u",
)
RANK = dataclasses.replace(PLAIN, argv=("@CARME_ARGV@",), shm="/dev/shm/carme-@CARME_STEP@")
CASES = {"plain": PLAIN, "everything": EVERYTHING, "rank": RANK}


def on(request: ContainerRequest, format: Format, **image: str) -> ContainerRequest:
    made = Image("lab", PATHS[format], format, **image)  # type: ignore[arg-type]
    return dataclasses.replace(request, image=made)


@pytest.mark.parametrize("name", RUNTIMES)
def test_command_lines_are_the_golden_ones(name: str) -> None:
    rendered = {
        f"{case}-{format}": dataclasses.asdict(runtime(name).render(on(request, format)))
        for case, request in CASES.items()
        for format in sorted(runtime(name).formats)
    }
    if name == "bubblewrap":
        for case, request in CASES.items():
            rendered[f"{case}-host"] = dataclasses.asdict(runtime(name).render(on(request, "dir", base="host")))
    text = json.dumps(rendered, indent=1, sort_keys=True) + "\n"
    file = GOLDEN / f"{name}.json"
    if os.environ.get("CARME_GOLDEN"):
        file.write_text(text)
    assert json.loads(text) == json.loads(file.read_text())


@pytest.mark.parametrize("name", RUNTIMES)
def test_values_of_variables_are_never_in_the_command_line(name: str) -> None:
    for format in runtime(name).formats:
        plan = runtime(name).render(on(EVERYTHING, format))
        assert not any("touch x" in word for word in plan.argv)
        assert any(value == EVERYTHING.environ["QUOTED"] for value in plan.environ.values())


@pytest.mark.parametrize("name", RUNTIMES)
def test_slurms_gpus_are_handed_in_and_none_is_invented(name: str) -> None:
    for format in runtime(name).formats:
        with_gpus = runtime(name).render(on(EVERYTHING, format))
        assert "CUDA_VISIBLE_DEVICES" in with_gpus.pass_env
        assert not any(key.endswith("CUDA_VISIBLE_DEVICES") for key in with_gpus.environ)
        without = runtime(name).render(on(PLAIN, format))
        assert "CUDA_VISIBLE_DEVICES" not in without.pass_env
        assert "" in [value for key, value in without.environ.items() if key.endswith("CUDA_VISIBLE_DEVICES")]


@pytest.mark.parametrize("name", RUNTIMES)
def test_formats_that_a_runtime_does_not_take_are_refused(name: str) -> None:
    for format in sorted(set(PATHS) - runtime(name).formats):
        with pytest.raises(ContainerError):
            runtime(name).render(on(PLAIN, format))


def test_bubblewrap_says_what_makes_a_folder_of_one_file() -> None:
    with pytest.raises(
        ContainerError, match=r"not sqfs: `carme-hub image add NAME FILE` makes one of the file, or use"
    ):
        runtime("bubblewrap").render(on(PLAIN, "sqfs"))


@pytest.mark.parametrize("name", sorted(set(RUNTIMES) - {"bubblewrap"}))
def test_an_image_without_a_system_needs_bubblewrap(name: str) -> None:
    with pytest.raises(ContainerError, match="whole system"):
        runtime(name).render(on(PLAIN, next(iter(runtime(name).formats)), base="host"))


def test_charliecloud_says_that_it_cannot_bind_read_only() -> None:
    request = dataclasses.replace(on(PLAIN, "dir"), binds=(Bind("/data/sets", "/data"),))
    with pytest.raises(ContainerError, match="read-only"):
        runtime("charliecloud").render(request)
    assert "--ro-bind" in runtime("bubblewrap").render(request).argv


@pytest.mark.parametrize("name", ["pyxis", "podman"])
def test_optional_binds_are_refused_where_they_cannot_be(name: str) -> None:
    request = dataclasses.replace(on(PLAIN, "ref"), binds=(Bind("/data/sets", "/data", optional=True),))
    with pytest.raises(ContainerError, match="only if it exists"):
        runtime(name).render(request)


def test_podman_makes_mount_points_that_an_image_lacks_and_asks_for_those_it_cannot_make() -> None:
    binds = (Bind("/data/a", "/data/a"), Bind("/lent", "/given"), Bind("/models", "/opt/models"))
    plan = runtime("podman").render(dataclasses.replace(on(PLAIN, "dir"), binds=binds))
    made = [word.partition(":")[0] for word in plan.argv if word.endswith("notmpcopyup")]
    assert made == ["--tmpfs=/home", "--tmpfs=/data"]
    assert plan.preflight == ("/store/lab", "/store/lab/opt/models")


def test_podman_keeps_what_it_notes_down_in_a_folder_of_the_session_that_it_removes() -> None:
    session = "/home/alice/.carme/sessions/0f1e2d3c-0000-4000-8000-123456789abc"
    plan = runtime("podman").render(dataclasses.replace(on(PLAIN, "dir"), session_folder=session))
    own = "/tmp/carme-0f1e2d3c000040008000123456789abc"
    assert plan.environ["XDG_RUNTIME_DIR"] == own
    runroot = plan.argv[plan.argv.index("--runroot") + 1]
    assert runroot.startswith(own)
    assert len(runroot) <= 50  # Podman refuses more
    assert plan.cleanup[-1] == ("rm", "-rf", "--one-file-system", own)


def test_podman_is_the_one_that_the_site_wants() -> None:
    request = on(EVERYTHING, "dir")
    usual = runtime("podman").render(request).argv
    assert {"crun", "--cgroups=disabled", "--device=nvidia.com/gpu=all"} <= set(usual)
    other = runtime("podman", podman_engine="runc", podman_device="").render(request).argv
    assert {"runc", "--cgroups=no-conmon"} <= set(other)
    assert not any(word.startswith("--device") for word in other)


def test_unknown_runtime_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'docker'.*bubblewrap.*podman"):
        runtime("docker")
