"""Where the jobs of this hub report what they use: the address of the activity service as compute nodes reach it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jupyterhub.app import JupyterHub

from carme_hub.activity.settings import service_url
from carme_hub.domain.sessions.session import Request
from carme_hub.spawners.hub.shared import HubContext
from carme_hub.spawners.job_script import Owner, Reporting, Site


def site_for(hub: HubContext, spawner: Any, owner: Owner) -> Site:
    """Return the settings for the containers of a user, and where the user's jobs report."""
    site: Site = spawner.site(owner.home)
    tokens, settings = hub.reporter_tokens, hub.activity
    if tokens is None:
        return site
    app = JupyterHub.instance()
    url = service_url(settings, str(app.public_url), str(app.bind_url), str(spawner.hub.api_url))
    paths = settings.ca_file, settings.interval, settings.nvml_library
    return replace(site, reporting=Reporting(url, tokens.token, *paths, settings.before_end_text))


async def with_folders(hub: HubContext, spawner: Any, site: Site, request: Request) -> Site:
    """Return the settings for the containers of a request with its shared folders.

    Raises:
        Refused: one of them is not shared with the user any more.
    """
    return await hub.folders.mounted(site, spawner.owner().name, request) if hub.folders is not None else site
