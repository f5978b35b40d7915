"""A server's certificate names its nodes as the hub reaches them, and never the hub."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from carme_hub.spawners.hub import tls


class NodesOfOneSlurm:
    """Names two nodes; one is in the partition of the request."""

    async def nodes(self, max_age: float) -> list[Any]:
        return [
            SimpleNamespace(name="n1", address="10.0.0.11", partitions=("gpu",)),
            SimpleNamespace(name="n2", address="", partitions=("cpu",)),
        ]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ["IP:10.0.0.11"]),
        ({"ssl_alt_names": ["DNS:hub.example.org"]}, ["IP:10.0.0.11"]),  # JupyterHub's default: the hub's own names
        ({"ssl_alt_names": ["DNS:*.nodes.example.org"]}, ["DNS:*.nodes.example.org"]),
        ({"node_address": lambda node: f"{node}.example.org"}, ["DNS:n1.example.org"]),
    ],
)
async def test_the_names_are_those_of_nodes(
    settings: dict[str, Any], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {
        **{"ssl_alt_names": [], "trusted_alt_names": ["DNS:hub.example.org"], "node_address": None},
        **{"internal_certs_location": "", "internal_trust_bundles": {tls.AUTHORITY: ""}, "start_timeout": 1},
        **{"_request": SimpleNamespace(partition="gpu", time_limit=1), "user": SimpleNamespace(name="tina")},
    }
    monkeypatch.setattr(tls, "issue", lambda *args: {"names": args[3]})
    issued: Any = await tls.issue_certificate(
        SimpleNamespace(**{**given, **settings}), SimpleNamespace(watcher=NodesOfOneSlurm())
    )
    assert issued["names"] == names
