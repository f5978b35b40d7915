# ruff: noqa: UP006, UP035, UP045
"""carme-image-jobs: which images the jobs of a node need, as Slurm says it (for ``carme-node-images``).

A job of several nodes may use its image on one of them only much later, when its ranks start there: no process says so
before. Slurm is asked only where an image would be removed; where it does not answer, the jobs are not known.
"""

import os
import re
import shutil
import subprocess

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Optional, Set

SECONDS = 10.0
#: Slurm gives a Prolog no PATH.
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/slurm/bin:/opt/slurm/bin"
REFERENCE = re.compile(r"(?:^|\s)carme-image=(sha256:[0-9a-f]{64}(?:\.sqfs)?)(?=\s|$)", re.M)


def images_of_jobs(node: str, squeue: str) -> "Optional[Set[str]]":
    """Return the images that jobs on a node name in their comments; None = not known.

    Args:
        squeue: Slurm's command, by name or path.
    """
    program = shutil.which(squeue, path=os.environ.get("PATH") or PATH)
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "--noheader", "--nodelist", node, "--format=%k"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    return set(REFERENCE.findall(done.stdout.decode(errors="replace")))
