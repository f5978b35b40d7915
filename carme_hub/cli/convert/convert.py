"""Convert a text or an app to a ``Site``: what the command and the tests call."""

from __future__ import annotations

from pathlib import Path

from .findings import Level
from .mapping.config_file import map_config_file
from .mapping.moss import read_sinfo
from .mapping.ondemand import map_app
from .reading.config_file import read_config_file
from .reading.ondemand_app import read_app
from .site import Site


def convert_config(text: str, name: str, sinfo: str = "") -> Site:
    """Return what a jupyterhub_config.py becomes; ``sinfo`` is the answer of ``mapping.moss.SINFO``.

    Raises:
        ConfigError: it is not Python.
    """
    site = Site(name)
    map_config_file(read_config_file(text, name), site, read_sinfo(sinfo))
    return _complete(site)


def convert_app(path: Path) -> Site:
    """Return what an app of Open OnDemand becomes, by its folder or its form.

    Raises:
        ConfigError: the form is no YAML.
    """
    app = read_app(path)
    site = Site(app.form_file)
    map_app(app, site)
    return _complete(site)


def _complete(site: Site) -> Site:
    """Add what every site needs and the old file has not."""
    if not site.images:
        site.add_missing_image("default")
        sentence = "sessions run in containers: make an image (docs/howto/add-an-image.md), or correct the path"
        site.say(0, "images", Level.LOOK, sentence)
    if site.profiles and not any(profile.data.get("default") for profile in site.profiles):
        site.profiles[0].data["default"] = True
    if "cluster" not in site.slurm:
        sentence = "name the cluster as slurm.conf's ClusterName does"
        site.say(0, "CarmeSlurm.cluster", Level.LOOK, sentence)
    return site
