"""A site whose hub is backed up in tests: both databases, secrets and certificates in the folder of ``CommandLine``."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from jupyterhub import orm
from rig.command_line import CommandLine, line

from carme_hub.cli.hub_config import hub_of, load_config
from carme_hub.cli.init import make_certificates

__all__ = ["line", "site"]


def hub_rows(line: CommandLine) -> Any:
    """Return a session with JupyterHub's database of the site."""
    return orm.new_session_factory(f"sqlite:///{line.folder / 'state' / 'jupyterhub.sqlite'}")()


def close(session: Any) -> None:
    session.close()
    session.get_bind().dispose()


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def site(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    """The command line of a site that has all that a hub has after its first start."""
    for name in ("CONFIGPROXY_AUTH_TOKEN", "JUPYTERHUB_CRYPT_KEY", "CARME_SMTP_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    state, before = line.folder / "state", os.umask(0o077)
    for name in ("jupyterhub_cookie_secret", "proxy-token"):
        (state / name).write_text("5" * 64)
    (line.folder / "policy.yaml").write_text("quotas: []\n")
    line.file.write_text(
        line.file.read_text()
        + f"c.JupyterHub.hub_bind_url = 'https://127.0.0.1:{free_port()}'\n"
        + f"c.CarmeQuotas.policy_file = {str(line.folder / 'policy.yaml')!r}\n"
        + "c.CarmeQuotas.policy = {}\n"
    )
    (line.folder / "policy.yaml").write_text("zone: Europe/Berlin\nquotas: []\n")
    rows = hub_rows(line)
    rows.add(orm.User(name="ada"))
    rows.commit()
    close(rows)
    asyncio.run(make_certificates(hub_of(load_config(Path(line.file)))))
    try:
        yield line
    finally:
        os.umask(before)
