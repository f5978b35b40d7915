"""The quotas service, without a hub and without Slurm."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from forged_rest import ACCESS, PREFIX, ForgedLogin, Service
from jupyterhub.services.auth import HubOAuth


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the service ask a forged hub who somebody is."""
    for name, value in {
        "JUPYTERHUB_API_TOKEN": "of-the-service",
        "JUPYTERHUB_CLIENT_ID": "service-quotas",
        "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
        "JUPYTERHUB_OAUTH_ACCESS_SCOPES": json.dumps([ACCESS]),
        "JUPYTERHUB_API_URL": "http://127.0.0.1:9/hub/api",
    }.items():
        monkeypatch.setenv(name, value)
    HubOAuth.clear_instance()
    ForgedLogin.instance()
    yield
    ForgedLogin.clear_instance()


@pytest_asyncio.fixture
async def service(login: None, tmp_path: Path) -> AsyncIterator[Service]:
    """The service on a real server and a real ledger."""
    service = Service(tmp_path)
    yield service
    await service.close()
