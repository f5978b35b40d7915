"""Find the files that are not Python: templates, static files, Slurm examples, the programs for compute nodes.

A wheel installs them under ``<prefix>/share/carme_hub``; an editable install does not install them, so the folder
beside the package comes first. pip's ``--user`` and ``--target`` install them elsewhere than under ``sys.prefix``,
so all parent folders of the package are searched.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from carme_hub.errors import ConfigError

#: Overrides the search, for packagers.
SHARE_VARIABLE = "CARME_HUB_SHARE"


def share_folder() -> Path:
    """Return the folder that holds ``templates``, ``static`` and the others; raise ``ConfigError`` if there is none."""
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
