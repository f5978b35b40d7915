"""An environment.yml with packages of conda: what it may say, and from which channels."""

from __future__ import annotations

import json
from typing import Any

import pytest

from carme_hub.domain.images.builds import CannotBuild
from carme_hub.domain.images.conda import has_conda_packages, parse_environment

FORGE = {"conda-forge": "https://conda.anaconda.org/conda-forge", "ours": "file:///srv/conda"}


def test_packages_channels_and_the_part_of_pip() -> None:
    value = {
        "name": "climate",
        "channels": ["file:///srv/conda/", "conda-forge", "nodefaults", "ours"],
        "dependencies": ["python=3.12", "numpy>=2,<3", "pip", "hdf5=1.14.*=nompi*", {"pip": ["rich==14.0"]}],
    }
    found = parse_environment(value, FORGE)
    assert found.channels == ("ours", "conda-forge")
    assert found.packages == ("python=3.12", "numpy>=2,<3", "pip", "hdf5=1.14.*=nompi*", "ipykernel")
    assert found.pip == "rich==14.0\n"
    again = parse_environment(json.loads(found.text()), FORGE)
    assert again == found, "what is kept says the same"


def test_without_channels_it_takes_those_of_the_site_and_one_kernel_is_enough() -> None:
    found = parse_environment({"dependencies": ["python", "pip", {"pip": ["ipykernel"]}]}, FORGE)
    assert found.channels == ("conda-forge", "ours")
    assert found.packages == ("python", "pip")
    assert parse_environment({"dependencies": ["ipykernel=7"]}, FORGE).packages == ("ipykernel=7",)


@pytest.mark.parametrize(
    ("value", "conda"),
    [
        ({"dependencies": ["python=3.11", "pip", {"pip": ["rich"]}]}, False),
        ({"dependencies": ["python-dateutil"]}, True),
        ({"dependencies": ["gdal", {"pip": ["rich"]}]}, True),
        ({"dependencies": []}, False),
        ([], False),
    ],
)
def test_python_and_pip_alone_are_the_bases(value: object, conda: bool) -> None:
    assert has_conda_packages(value) is conda


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "no environment.yml"),
        ({"dependencies": ["gdal"], "channels": ["defaults"]}, "The channel defaults is not allowed here. Allowed are"),
        ({"dependencies": ["gdal"], "channels": ["https://evil.example/x"]}, "not allowed here"),
        ({"dependencies": ["gdal"], "channels": "conda-forge"}, "a list of names"),
        ({"dependencies": ["evil::gdal"]}, "names a channel"),
        ({"dependencies": ["gdal[url=https://x/y]"]}, "not a package"),
        ({"dependencies": ["https://x/gdal.conda"]}, "not a package"),
        ({"dependencies": ["/home/x.conda"]}, "not a package"),
        ({"dependencies": ["--help"]}, "not a package"),
        ({"dependencies": [7]}, "not a package"),
        ({"dependencies": ["gdal", {"npm": ["x"]}]}, "not a package"),
        ({"dependencies": []}, "names no package"),
        ({"dependencies": ["gdal", {"pip": ["rich"]}]}, "list python"),
        ({"dependencies": ["gdal", "python", {"pip": ["/etc/x"]}]}, "is a file"),
        ({"dependencies": ["gdal"], "variables": {"LD_PRELOAD": "x"}}, "has variables, which cannot be used here"),
        ({"dependencies": [f"p{number}" for number in range(501)]}, "too long"),
    ],
)
def test_what_cannot_be_built_says_what_to_do(value: Any, said: str) -> None:
    with pytest.raises(CannotBuild) as refused:
        parse_environment(value, FORGE)
    assert said in refused.value.message


def test_a_site_may_allow_none() -> None:
    with pytest.raises(CannotBuild, match="allows no channel"):
        parse_environment({"dependencies": ["gdal"]}, {})
