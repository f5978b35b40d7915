"""What tests with a hub in this process have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from jupyterhub.httpclient import JupyterHubHTTPClient


@pytest.fixture(autouse=True, scope="module")
async def hubs_connections() -> AsyncIterator[None]:
    """Close what JupyterHub keeps open for each event loop; left alone it is complained of in some later test."""
    yield
    if JupyterHubHTTPClient.initialized():
        await JupyterHubHTTPClient.loop_instance().close()
