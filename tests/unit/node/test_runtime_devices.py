"""A device that the container runtime needs, such as /dev/fuse, and that a node does not give to its users."""

from __future__ import annotations

import os

import pytest

from carme_hub.node import batch_script

PLAN = {"argv": ["/bin/true"], "preflight": ["/dev/null"]}


def test_one_that_users_may_not_open_ends_with_76(monkeypatch: pytest.MonkeyPatch) -> None:
    batch_script.check_node({"plan": PLAN})
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != "/dev/null" and real(path, mode))  # root may open all
    with pytest.raises(batch_script.Failed, match="needs /dev/null, which users may not open on this node") as failed:
        batch_script.check_node({"plan": PLAN})
    assert failed.value.args[0] == batch_script.NO_RUNTIME == 76
