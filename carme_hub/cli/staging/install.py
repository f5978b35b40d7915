"""``carme-hub staging install``: the programs that make and empty scratch folders, for compute nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from carme_hub.cli.base import ConfiguredApp, positional_arguments
from carme_hub.node import program
from carme_hub.paths import share_folder

#: Names of the files on a node beside carme-stage-out, and the programs of ``carme_hub.node`` that they are.
FILES = {
    "carme-stage": "staging/mover",
    "carme-stage-files": "staging/files",
    "carme-stage-remote": "staging/remote",
}
MAIN = "carme-stage-out"


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
        folder = await asyncio.to_thread(write, Path(name))
        if self.as_json:
            self.print_json({"folder": str(folder), "files": sorted([MAIN, *FILES])})
            return 0
        print(f"{', '.join([MAIN, *FILES])} are in {folder}. In slurm.conf, unless the site has a Prolog and an Epilog")
        print(f"of its own, which then call {folder}/{MAIN} prolog, and … epilog:")
        print(f"Prolog={folder}/carme-stage-prolog\nEpilog={folder}/carme-stage-epilog")
        print(f"At boot and every ten minutes as root: {folder}/{MAIN} sweep (carme-stage-out.timer does it).")
        return 0


def write(folder: Path) -> Path:
    """Write the programs, and the two that Slurm calls without an argument; return the folder's absolute path."""
    folder = folder.absolute()
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    texts = {name: program(source) for name, source in FILES.items()}
    texts[MAIN] = (share_folder() / "libexec" / MAIN).read_text(encoding="utf-8")
    for verb in ("prolog", "epilog"):
        texts[f"carme-stage-{verb}"] = f'#!/bin/sh\nexec "{folder}/{MAIN}" {verb}\n'
    for name, text in texts.items():
        new = folder / f".{name}.new"
        new.write_text(text, encoding="utf-8")
        new.chmod(0o755)
        new.replace(folder / name)
    return folder
