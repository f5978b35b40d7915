"""What docs/howto/real-site.md says, for those that do the same in another way: packages, settings, the user."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/howto/real-site.md"
_BLOCK = re.compile(r"^( *)<!-- on: ([a-z ]+), [^>]*-->\n\1```\w*\n(.*?)\n\1```$", re.MULTILINE | re.DOTALL)


def _blocks(kind: str) -> list[str]:
    return [text for _, kinds, text in _BLOCK.findall(PAGE.read_text()) if kind in kinds.split()]


def packages(kind: str) -> set[str]:
    """Return what ``apt-get`` installs on a kind of machine (hub, controller, nodes), without the web server."""
    lines = re.findall(r"apt-get install -y --no-install-recommends (.+)", "\n".join(_blocks(kind)))
    return {word for line in lines for word in line.split() if not word.startswith(("nginx", "caddy"))}


def settings(file: str) -> dict[str, str]:
    """Return the recommended settings of slurm.conf or slurmdbd.conf."""
    marked = re.search(
        rf"<!-- on: controller, set in: /etc/slurm/{file} -->\n```\n(.*?)```", PAGE.read_text(), re.DOTALL
    )
    assert marked is not None, file
    return dict(line.split("=", 1) for line in marked[1].splitlines())


def hub_user() -> str:
    """Return the command that makes the hub's user."""
    (line,) = {
        line.strip() for text in _blocks("hub") for line in text.splitlines() if line.strip().startswith("useradd ")
    }
    return line
