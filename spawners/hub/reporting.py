"""Where the jobs of this hub report: what they use to the activity service, by its address as compute nodes reach it;
and what nodes copy to the hub.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jupyterhub.app import JupyterHub

from carme_hub.activity.settings import service_url
from carme_hub.domain.sessions.session import Request, Session
from carme_hub.spawners.hub.shared import HubContext
from carme_hub.spawners.hub.tls import issue_certificate
from carme_hub.spawners.job_script import NOBODY, Owner, Reporting, Server, Site


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


async def without_server(hub: HubContext, spawner: Any, session: Session) -> Server:
    """Return what a job without a server has of one: where its nodes report what they copy, and with what.

    Raises:
        StoreError: it cannot be stored that they copy something; nothing was submitted.
    """
    if not session.request.stage:
        return NOBODY
    nonce = await hub.stagings.open(session.id, session.user, session.request.stage)
    tls = await issue_certificate(spawner, hub) if spawner.internal_ssl else {}
    return replace(NOBODY, callback=spawner.callback_url(session.id), stage_nonce=nonce, tls=tls)
