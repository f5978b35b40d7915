"""``carme-hub nodes install-images``: give nodes the program that keeps images on their disks."""

from __future__ import annotations

import asyncio
from pathlib import Path

from carme_hub.cli.base import ConfiguredApp, positional_arguments
from carme_hub.node.images.store import CONFIG, SETTINGS

from .check import write_programs

#: Names of the files on a node, and the programs of ``carme_hub.node`` that they are.
FILES = {
    "carme-node-images": "images/store",
    "carme-image-copy": "images/copy",
    "carme-image-jobs": "images/jobs",
    "carme-image-service": "images/service",
}
#: What slurm.conf's Prolog names. A job without an image, or one whose image is here, costs a shell and no more; what
#: is not as expected is left to carme-node-images.
PROLOG = "carme-image-prolog"
_PROLOG_TEXT = """\
#!/bin/sh
comment=" $SLURM_JOB_COMMENT"
case "$comment" in *[[:space:]]carme-image=sha256:*) ;; *) exit 0 ;; esac
word="${comment#*[[:space:]]carme-image=}"
word="${word%%[[:space:]]*}"
into="@INTO@"
if [ -r "@CONFIG@" ]; then
    while read -r key equals value; do
        case "$key" in
        into) [ "$equals" = "=" ] && into="$value" || into="" ;;
        into*) into="" ;;
        esac
    done < "@CONFIG@"
fi
name="sha256-${word#sha256:}"
case "$word" in
*[!a-z0-9:.]*) ;;
*)
    if [ -n "$into" ] && [ -d "$into/$name" ] && [ ! -L "$into/$name" ]; then
        { : > "$into/.state/$name.used"; } 2> /dev/null && exit 0
    fi
    ;;
esac
exec "@FOLDER@/carme-node-images" prolog@MORE@
"""


def prolog_text(folder: Path, config: str = CONFIG) -> str:
    """Return the text of the Prolog."""
    more = "" if config == CONFIG else f' --config "{config}"'  # the usual one may be missing
    words = {"@FOLDER@": str(folder), "@CONFIG@": config, "@INTO@": SETTINGS["images"]["into"], "@MORE@": more}
    text = _PROLOG_TEXT
    for name, value in words.items():
        text = text.replace(name, value)
    return text


def write(folder: Path, config: str = CONFIG) -> Path:
    """Write all files, and return the folder's absolute path."""
    folder = write_programs(folder, FILES)
    new = folder / f".{PROLOG}.new"
    new.write_text(prolog_text(folder, config), encoding="utf-8")
    new.chmod(0o755)
    new.replace(folder / PROLOG)
    return folder


class InstallImagesApp(ConfiguredApp):
    """Write the program that keeps images on nodes into a folder."""

    name = "carme-hub nodes install-images"
    description = """Write carme-node-images into FOLDER, which only root may write and which the nodes have under the
    same path. It needs python3 there, and nothing else. What was there is replaced."""
    examples = "carme-hub nodes install-images /opt/carme-hub/node"

    async def work(self) -> int:
        """Write the files, and say what to do with them."""
        (name,) = positional_arguments(self, "FOLDER")
        folder = await asyncio.to_thread(write, Path(name))
        files = sorted((*FILES, PROLOG))
        if self.as_json:
            self.print_json({"folder": str(folder), "files": files})
            return 0
        print(f"{', '.join(files)} are in {folder}. In slurm.conf, or from a script of its Prolog:")
        print(f"Prolog={folder}/{PROLOG}")
        print("and from a timer on each node, every 10 minutes:")
        print(f"{folder}/carme-node-images sync")
        return 0
