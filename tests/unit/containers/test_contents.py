"""What is inside an image is found by looking at names and small files; nothing outside of it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from carme_hub.containers.contents import look_inside
from carme_hub.containers.store.packages import look_inside as packages_of
from carme_hub.domain.images.contents import Contents


def write(root: Path, path: str, text: str = "") -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_venv_with_torch(tmp_path: Path) -> None:
    site = "opt/venv/lib/python3.11/site-packages"
    write(tmp_path, "opt/venv/pyvenv.cfg", "home = /usr/bin\nversion = 3.11.2\n")
    write(tmp_path, f"{site}/torch-2.6.0.dist-info/METADATA")
    write(tmp_path, f"{site}/torch/version.py", "__version__ = '2.6.0+cu124'\ncuda: Optional[str] = '12.4'\n")
    write(tmp_path, f"{site}/jupyterlab-4.4.1.dist-info/METADATA")
    write(tmp_path, f"{site}/jupyterhub-6.1.1.dist-info/METADATA")
    write(tmp_path, f"{site}/jupyterlab_server-2.27.dist-info/METADATA")
    assert look_inside(tmp_path) == Contents("3.11.2", "12.4", "2.6.0+cu124", "4.4.1", "6.1.1")


def test_a_conda_image_and_one_of_nvidia(tmp_path: Path) -> None:
    conda, nvidia = tmp_path / "conda", tmp_path / "nvidia"
    write(conda, "opt/conda/conda-meta/python-3.12.4-h194c7f8_0.json")
    write(conda, "opt/conda/conda-meta/cuda-cudart-12.1.105-0.json")
    assert look_inside(conda) == Contents(python="3.12.4", cuda="12.1.105")
    write(nvidia, "usr/local/cuda/version.json", '{"cuda": {"version": "12.8.0"}}')
    write(nvidia, "usr/bin/python3.10")
    write(nvidia, "usr/local/lib/python3.10/dist-packages/torch-2.7.0a0+79aa17489c.nv25.4.dist-info/METADATA")
    assert look_inside(nvidia) == Contents(python="3.10", cuda="12.8.0", torch="2.7.0a0+79aa17489c.nv25.4")


def test_links_within_the_image_are_followed_and_none_leads_out(tmp_path: Path) -> None:
    image, outside = tmp_path / "image", tmp_path / "outside"
    write(image, "usr/local/cuda-12.4/version.json", '{"cuda": {"version": "12.4.1"}}')
    (image / "etc/alternatives").mkdir(parents=True)
    (image / "etc/alternatives/cuda").symlink_to("/usr/local/cuda-12.4")
    (image / "usr/local/cuda").symlink_to("/etc/alternatives/cuda")
    assert look_inside(image).cuda == "12.4.1", "an absolute link means the image's own"
    write(outside, "version.json", '{"cuda": {"version": "9.9"}}')
    for target in (str(outside), f"../../../{outside.name}", "../../../../../../../../../.."):
        (image / "usr/local/cuda").unlink()
        (image / "usr/local/cuda").symlink_to(target)
        assert look_inside(image).cuda == "12.4", "the folder beside it still says so"
    (image / "usr/local/cuda").unlink()
    (image / "usr/local/cuda").symlink_to("cuda")
    assert look_inside(image).cuda == "12.4"


@pytest.mark.parametrize("path", ["usr/local/cuda/version.json", "opt/venv/pyvenv.cfg"])
def test_files_that_are_none_or_are_nonsense_are_unknown(tmp_path: Path, path: str) -> None:
    write(tmp_path, path, "\x00\xff" * 100)
    assert look_inside(tmp_path) == Contents()
    (tmp_path / path).unlink()
    (tmp_path / path).mkdir()
    assert look_inside(tmp_path) == Contents()
    assert look_inside(tmp_path / "nosuch") == Contents()


def test_json_that_is_deeper_than_python_reads_is_nonsense_too(tmp_path: Path) -> None:
    write(tmp_path, "usr/local/cuda/version.json", "[" * 60_000)
    write(tmp_path, "opt/conda/conda-meta/evil-1-0.json", '{"name":' * 60_000)
    write(tmp_path, "opt/conda/conda-meta/good-1-0.json", '{"name": "good", "version": "1"}')
    assert look_inside(tmp_path) == Contents()
    assert packages_of(tmp_path).packages == {"conda": {"good": "1"}}
