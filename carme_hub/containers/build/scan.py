"""The parts of an image that others are about to be offered, and the site's scan of it, which can refuse it.

The list of parts is made by syft where it is installed (https://github.com/anchore/syft), or else of the packages that
were found by looking.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from carme_hub.containers.store.bounds import Bounds
from carme_hub.containers.store.process import ENVIRON, Steps
from carme_hub.domain.images.builds import bill_of_materials
from carme_hub.domain.wording import escaped
from carme_hub.errors import ContainerError, ContainerUnavailable

_MOST_TEXT = 1000


class NotAllowed(ContainerError):
    """The site's scan refuses an image; the message is what it said."""


def parts_of(
    tree: Path, name: str, digest: str, packages: Mapping[str, Mapping[str, str]], steps: Steps
) -> dict[str, Any]:
    """Return the parts of an image as CycloneDX JSON."""
    if shutil.which("syft", path=ENVIRON["PATH"]) is not None:
        try:
            found = json.loads(steps.run(["syft", "scan", f"dir:{tree}", "--output", "cyclonedx-json", "--quiet"]))
            if isinstance(found, dict) and found.get("bomFormat") == "CycloneDX":
                return found
        except (ContainerError, ValueError, RecursionError):
            pass  # it reads foreign files, and may fail at them; our own list has the packages too
    return bill_of_materials(name, digest, packages)


def scan(
    command: Sequence[str], tree: Path, parts: Mapping[str, Any], bounds: Bounds, say: Callable[[str], None]
) -> None:
    """Run the site's scan of an image; without a command nothing is scanned, and that is said.

    Raises:
        NotAllowed: it refuses the image. ContainerUnavailable: it could not be run, or failed: it has not said anything
            of the image.
    """
    if not command:
        say("Not scanned: CarmeImages.scan names no command")
        return
    try:
        done = subprocess.run(
            [*command, str(tree)],
            input=json.dumps(parts),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=bounds.left(),
            env=ENVIRON,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ContainerUnavailable(f"the scan {command[0]} could not be run to its end: {error}") from error
    said = escaped(" ".join(done.stdout.split()))[:_MOST_TEXT]  # it may name the image's files
    if done.returncode == 1:
        raise NotAllowed(f"the scan refuses it: {said or 'it says no more'}")
    if done.returncode:
        raise ContainerUnavailable(
            f"the scan {command[0]} failed with {done.returncode}: {' '.join(done.stderr.split())[-300:]}"
        )
    say(f"Scanned: {said or 'nothing to say'}")
