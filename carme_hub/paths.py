"""Where the files that are not Python lie: templates, static files, Slurm examples, the node's programs.

A wheel puts them under ``<prefix>/share/carme_hub``; an editable install never does, so the folder beside the package
wins. pip's ``--user`` and ``--target`` put them elsewhere than ``sys.prefix``, which is why the way up is searched.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from carme_hub.errors import ConfigError

#: Overrides the search, for packagers.
SHARE_VARIABLE = "CARME_HUB_SHARE"


def share_folder() -> Path:
    """Return the folder that holds ``templates``, ``static`` and the others; ``ConfigError`` when there is none."""
    named = os.environ.get(SHARE_VARIABLE)
    if named:
        return Path(named)
    package = Path(__file__).resolve().parent
    for above in (package.parent, Path(sys.prefix), *package.parents):
        candidate = above / "share" / "carme_hub"
        if (candidate / "templates").is_dir():
            return candidate
    raise ConfigError(
        f"the folder share/carme_hub was not found above {package} nor in {sys.prefix}; "
        f"install carme-hub again, or set {SHARE_VARIABLE} to it"
    )
