"""What sessions get of an image's own variables, and which image a name stands for as a session starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from carme_hub.containers.image_environ import DEFAULT_NAMES, image_path, image_variables
from carme_hub.containers.images import pinned, read_image
from carme_hub.containers.registry import runtime
from carme_hub.containers.runtime import Image
from carme_hub.domain.sessions.session import Request
from carme_hub.errors import ContainerError
from carme_hub.spawners.job_script import Owner, Server, Site, container_of, render

ALICE = Owner("alice", 1001, 1001, "/home/alice")
ONE, TWO = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def test_sessions_get_the_variables_of_the_list_and_never_those_that_control() -> None:
    environ = {"CUDA_VERSION": "12.4", "CUDA_VISIBLE_DEVICES": "0", "NVIDIA_REQUIRE_CUDA": "x", "FOO": "bar"}
    environ |= {
        "LD_PRELOAD": "/evil.so",
        "PYTHONPATH": "/evil",
        "BASH_ENV": "/evil",
        "SLURM_CONF": "/evil",
        "HOME": "/x",
    }
    environ |= {
        "JUPYTERHUB_API_TOKEN": "x",
        "JUPYTERHUB_API_URL": "http://evil",
        "APPTAINER_BIND": "/",
        "TZ": "x" * 5000,
    }
    assert image_variables(environ.items(), DEFAULT_NAMES) == {"CUDA_VERSION": "12.4"}
    assert image_variables(environ.items(), ["*"]) == {
        **{"CUDA_VERSION": "12.4", "NVIDIA_REQUIRE_CUDA": "x", "FOO": "bar"},
    }


def test_the_path_of_an_image_comes_first_without_what_is_relative() -> None:
    path = image_path([("PATH", "/opt/a/bin:bin:.::/usr/bin:/opt/../etc:/opt/$HOME")], "/opt/venv/bin:/usr/bin")
    assert path == "/opt/a/bin:/usr/bin:/opt/venv/bin"
    assert image_path([], "/opt/venv/bin:/usr/bin") == "/opt/venv/bin:/usr/bin"


def test_a_session_has_its_images_variables_below_its_own() -> None:
    variables = (("JULIA_DEPOT_PATH", "/opt/julia"), ("LANG", "de_DE.UTF-8"), ("PATH", "/opt/a/bin"), ("TZ", "UTC"))
    image = Image("lab", "/srv/lab", digest=ONE, environ=variables)
    site = Site(runtime("bubblewrap"), environ={"TZ": "Europe/Berlin"})
    environ = container_of("0f9a", ALICE, Request("cpu", "lab"), image, site, "/home/alice/p").environ
    assert environ["JULIA_DEPOT_PATH"] == "/opt/julia"
    assert environ["LANG"] == "de_DE.UTF-8"
    assert environ["TZ"] == "Europe/Berlin"
    assert environ["PATH"].startswith("/home/alice/p/bin:/opt/a/bin:/opt/venv/bin:")
    assert environ["CARME_IMAGE_DIGEST"] == ONE
    spec = render("0f9a", ALICE, Request("cpu", "lab", image_digest=ONE), image, Server((), {}, "", ""), site)
    assert json.loads(spec.data)["request"]["image_digest"] == ONE


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A name that stands for ``ONE`` in a store that also has ``TWO``."""
    for digest in (ONE, TWO):
        folder = tmp_path / ".digests" / digest.replace(":", "-")
        folder.mkdir(parents=True)
        said = {"name": "lab", "format": "dir", "digest": digest, "environ": {"TZ": "UTC"}}
        (folder / "image.json").write_text(json.dumps(said))
    (tmp_path / "lab").symlink_to(f".digests/{ONE.replace(':', '-')}")
    return tmp_path / "lab"


def test_a_session_keeps_to_what_its_name_stood_for(named: Path) -> None:
    image = Image("lab", str(named), "dir", "For labs", provides=("torchrun",))
    first = pinned(image)
    assert (first.path, first.digest, first.environ) == (str(named.resolve()), ONE, (("TZ", "UTC"),))
    assert (first.description, first.provides) == ("For labs", ("torchrun",))
    named.unlink()
    named.symlink_to(f".digests/{TWO.replace(':', '-')}")
    assert pinned(image).digest == TWO
    assert pinned(image, ONE) == first  # what belongs to the earlier session
    assert pinned(Image("lab", str(named), digest=ONE)) == Image(
        "lab", first.path, digest=ONE, environ=(("TZ", "UTC"),)
    )
    with pytest.raises(ContainerError, match="not in the store"):
        pinned(image, "sha256:" + "3" * 64)


def test_what_the_hub_does_not_see_or_has_no_digest_stays_as_the_settings_say(tmp_path: Path) -> None:
    for image in (
        Image("lab", "/nowhere/lab"),
        Image("lab", "/nowhere/lab.sif", "sif"),
        Image("lab", "host/a:1", "ref"),
    ):
        assert pinned(image) == image
    (tmp_path / "image.json").write_text("{")
    assert pinned(Image("old", str(tmp_path))) == Image("old", str(tmp_path))
    (tmp_path / "image.json").write_text('{"format": "dir"}')
    assert pinned(Image("old", str(tmp_path))) == Image("old", str(tmp_path))
    assert read_image(tmp_path).digest == ""
