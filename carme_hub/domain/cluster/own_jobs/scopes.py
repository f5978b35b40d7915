"""The scopes of a user's own jobs, which ``carme_hub.configure`` adds to JupyterHub's."""

from __future__ import annotations

from typing import Any

#: The scopes of the hub's REST for a user's own jobs (spawners/handlers/jobs/rest.py). A server's token has neither.
JOB_SCOPES: dict[str, dict[str, Any]] = {
    "custom:carme:jobs:read": {"description": "See one's own jobs in Slurm and their output"},
    "custom:carme:jobs": {
        "description": "Act on one's own jobs in Slurm, and submit them again",
        "subscopes": ["custom:carme:jobs:read"],
    },
}
