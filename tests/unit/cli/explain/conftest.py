"""A site with a session to explain."""

from __future__ import annotations

import pytest
from explained_site import ExplainedSite
from rig.command_line import CommandLine, line

__all__ = ["line"]


@pytest.fixture
def site(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> ExplainedSite:
    monkeypatch.setenv("COLUMNS", "140")
    return ExplainedSite(line)
