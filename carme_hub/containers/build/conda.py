"""Images that users build by an ``environment.yml`` with packages of conda: a layer with an environment as a kernel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from carme_hub.node import program

from .job import PROGRAM, BuildWork


@dataclass(frozen=True, slots=True)
class CondaWork(BuildWork):
    """The work of such a build; ``channels``: the addresses of those that the site allows, by name."""

    channels: Mapping[str, str] = field(default_factory=dict)

    def said(self) -> dict[str, object]:
        """Return what the program reads."""
        environment = json.loads(self.build.text)  # as domain.images.conda writes it
        packages = [each for each in environment["dependencies"] if isinstance(each, str)]
        of_pip = [line for each in environment["dependencies"] if isinstance(each, dict) for line in each["pip"]]
        more = {
            "channels": {name: self.channels[name] for name in environment["channels"]},
            "packages": packages,
            "pip": "".join(f"{line}\n" for line in of_pip),
        }
        return {**BuildWork.said(self), **more}

    def programs(self) -> dict[str, str]:
        """Return its programs."""
        texts = {PROGRAM: program("images/conda"), "layer.py": program("images/layer")}
        return {**texts, "carme_packages.py": program("packages")}
