"""``carme-hub staging install``: the programs that make and empty scratch folders, for compute nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from carme_hub.cli.base import ConfiguredApp, positional_arguments
from carme_hub.spawners.staging.programs import FILES, MAIN, write_programs


class InstallApp(ConfiguredApp):
    """Write the programs for compute nodes into a folder."""

    name = "carme-hub staging install"
    description = """Write carme-stage-out, which Slurm's Prolog and Epilog call, and what it needs into FOLDER, which
    only root may write and which the nodes have under the same path. Its settings are in ../etc/carme-stage-out.json,
    seen from there. It needs python3 there, and rclone for S3 and the like. What was there is replaced."""
    examples = "carme-hub staging install /opt/carme-hub/node"

    async def work(self) -> int:
        """Write the files, and say what to do with them."""
        (name,) = positional_arguments(self, "FOLDER")
        folder = await asyncio.to_thread(write_programs, Path(name))
        if self.as_json:
            self.print_json({"folder": str(folder), "files": sorted([MAIN, *FILES])})
            return 0
        print(f"{', '.join([MAIN, *FILES])} are in {folder}. In slurm.conf, unless the site has a Prolog and an Epilog")
        print(f"of its own, which then call {folder}/{MAIN} prolog, and … epilog:")
        print(f"Prolog={folder}/carme-stage-prolog\nEpilog={folder}/carme-stage-epilog")
        print(f"At boot and every ten minutes as root: {folder}/{MAIN} sweep (carme-stage-out.timer does it).")
        return 0
