"""``carme-hub nodes install-images``: give nodes the program that keeps images on their disks."""

from __future__ import annotations

import asyncio
from pathlib import Path

from carme_hub.cli.base import ConfiguredApp, positional_arguments

from .check import write_programs

#: Names of the files on a node, and the programs of ``carme_hub.node`` that they are.
FILES = {
    "carme-node-images": "images/store",
    "carme-image-copy": "images/copy",
    "carme-image-service": "images/service",
}


class InstallImagesApp(ConfiguredApp):
    """Write the program that keeps images on nodes into a folder."""

    name = "carme-hub nodes install-images"
    description = """Write carme-node-images into FOLDER, which only root may write and which the nodes have under the
    same path. It needs python3 there, and nothing else. What was there is replaced."""
    examples = "carme-hub nodes install-images /opt/carme-hub/node"

    async def work(self) -> int:
        """Write the files, and say what to do with them."""
        (name,) = positional_arguments(self, "FOLDER")
        folder = await asyncio.to_thread(write_programs, Path(name), FILES)
        if self.as_json:
            self.print_json({"folder": str(folder), "files": sorted(FILES)})
            return 0
        print(f"{', '.join(FILES)} are in {folder}. In a script of slurm.conf's Prolog:")
        print(f"{folder}/carme-node-images prolog")
        print("and from a timer on each node, every 10 minutes:")
        print(f"{folder}/carme-node-images sync")
        return 0
