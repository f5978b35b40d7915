"""Settings of what users may build on: registries with their host, channels by a URL without a password."""

from __future__ import annotations

import pytest
from traitlets import TraitError

from carme_hub.images.settings import CarmeImages


def test_by_default_there_is_conda_forge_and_no_registry() -> None:
    settings = CarmeImages()
    assert settings.build_registries == []
    assert list(settings.build_channels) == ["conda-forge"]
    assert settings.build_network


@pytest.mark.parametrize("value", ["python", "*", "*/x", "docker.io", "docker://docker.io/x", "docker.io/x y", "a@b/c"])
def test_a_repository_has_its_registrys_host(value: str) -> None:
    with pytest.raises(TraitError, match="write HOST/REPOSITORY"):
        CarmeImages(build_registries=[value])
    assert CarmeImages(build_registries=["docker.io/library/*"]).build_registries


@pytest.mark.parametrize("url", ["conda-forge", "/srv/conda", "https://me:secret@host/x", "file://host/x"])
def test_a_channel_is_a_url_without_a_password(url: str) -> None:
    with pytest.raises(TraitError, match=r"build_channels\['ours'\]"):
        CarmeImages(build_channels={"ours": url})
    assert CarmeImages(build_channels={"ours": "file:///srv/conda"}).build_channels
