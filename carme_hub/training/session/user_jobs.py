"""A client of the hub for the batch jobs of a user, which outlive the sessions that submitted them.

Errors of all functions: ``NoHub`` where there is no hub or it does not answer, ``Refused`` with the hub's reason.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from .companions import TIME_LIMIT, Hub
from .outside import ADDRESS_VARIABLE, access, is_outside, kept_access


def hub_of_user(environ: Mapping[str, str] = os.environ, time_limit: float = TIME_LIMIT) -> Hub:
    """Return the hub's interface for the batch jobs of this session's user.

    Args:
        time_limit: seconds for an answer.
    """
    if is_outside(environ) and environ.get(ADDRESS_VARIABLE):
        return access("", "", "", {}, environ).connect(environ, time_limit)
    found = Hub.from_environ(environ)
    name = quote(environ.get("JUPYTERHUB_USER", ""), safe="")
    url = f"{environ['JUPYTERHUB_API_URL'].rstrip('/')}/carme/users/{name}/batch-jobs"
    return replace(found, url=url, time_limit=time_limit)


def runs_of(hub: Hub) -> Hub:
    """Return the hub's interface for the runs of the user of batch jobs."""
    return replace(hub, url=hub.url.removesuffix("batch-jobs") + "runs")


def hub_of_run(job: Mapping[str, Any], time_limit: float = TIME_LIMIT) -> Hub:
    """Return the hub's interface for the batch jobs of this user, as far as a run knows it.

    Args:
        job: what is kept of its batch job. time_limit: seconds for an answer.
    """
    kept = job.get("access")
    # A session asks its own hub: the address, the token and the authority of another machine mean something else here.
    if not kept or not is_outside():
        return hub_of_user(time_limit=time_limit)
    return kept_access(kept).connect(time_limit=time_limit)


def jobs_by_run(hub: Hub) -> dict[str, dict[str, Any]]:
    """Return the newest batch job of each run, by the run's id; docs/reference/rest.md lists the fields."""
    listed = hub.ask("GET", "").get("batch_jobs")
    jobs = listed if isinstance(listed, list) else []
    return {str(each["run"]): each for each in jobs if isinstance(each, dict) and each.get("run")}


def cancel(hub: Hub, id: str) -> None:
    """Cancel a batch job, whether it waits or runs; an ended one stays as it is."""
    hub.ask("DELETE", f"/{uuid.UUID(id)}")
