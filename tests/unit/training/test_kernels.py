"""Kernels start with our extension, and are installed for the Python that installs them."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest

from carme_hub.training.templates import kernels


@pytest.fixture(autouse=True)
def with_ipykernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda module: object())


def test_every_kernel_is_shipped_with_its_logos() -> None:
    assert sorted(path.name for path in kernels.folder().iterdir()) == sorted(kernels.NAMES)
    for name in kernels.NAMES:
        folder = kernels.folder() / name
        spec = json.loads((folder / "kernel.json").read_text())
        assert spec["argv"] == [
            *("python", "-m", "ipykernel_launcher", "-f", "{connection_file}", "--ext", "carme_hub.training")
        ]
        assert (folder / "logo-svg.svg").read_text().startswith("<svg ")
        for size in (32, 64):
            png = (folder / f"logo-{size}x{size}.png").read_bytes()
            assert struct.unpack(">II", png[16:24]) == (size, size)


def test_a_kernel_names_its_backend() -> None:
    said = {
        name: json.loads((kernels.folder() / name / "kernel.json").read_text())["env"].get("CARME_BACKEND")
        for name in kernels.NAMES
    }
    assert said == {"carme-python": None, "carme-horovod-pytorch": "horovod", "carme-torchrun": "torchrun"}


def test_they_are_installed_for_this_python(tmp_path: Path) -> None:
    for _ in range(2):  # again over what is there
        written = kernels.install(prefix=tmp_path)
    assert written == [tmp_path / "share/jupyter/kernels" / name for name in kernels.NAMES]
    for folder in written:
        assert json.loads((folder / "kernel.json").read_text())["argv"][0] == sys.executable
        assert sorted(path.name for path in folder.iterdir()) == ["kernel.json", *sorted(kernels.LOGOS)]


def test_they_are_installed_for_one_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    assert kernels.install(user=True)[0] == tmp_path / "kernels/carme-python"


def test_what_makes_no_sense_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(kernels.KernelError, match="not both"):
        kernels.install(user=True, prefix=tmp_path)
    (tmp_path / "share").write_text("a file")
    with pytest.raises(kernels.KernelError, match="cannot be written"):
        kernels.install(prefix=tmp_path)
    monkeypatch.setattr(kernels, "find_spec", lambda module: None)
    with pytest.raises(kernels.KernelError, match="pip install ipykernel"):
        kernels.install(prefix=tmp_path / "x")
