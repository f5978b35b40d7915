"""What every unit test may rely on."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from jupyterhub.services.auth import HubAuth, HubOAuth
from rig.once_per_process import _once_per_process
from rig.prepared_sqlite import _prepared_sqlite
from traitlets.config import Application

__all__ = ["_once_per_process", "_prepared_sqlite"]


@pytest.fixture(autouse=True, scope="module")
def _no_application_left() -> Iterator[None]:
    """Let no module find the application of another: traitlets keeps one per process."""
    _clear(Application)
    yield
    _clear(Application)


@pytest.fixture(autouse=True)
def _no_log_to_what_is_closed() -> None:
    """Take away handlers that an application of an earlier test left on a stream which pytest has closed since."""
    every = [logging.root, *(logging.getLogger(name) for name in list(logging.root.manager.loggerDict))]
    for logger in every:
        for handler in list(logger.handlers):
            if getattr(getattr(handler, "stream", None), "closed", False):
                logger.removeHandler(handler)


@pytest.fixture(autouse=True)
def _no_umask_of_others() -> Iterator[None]:
    """Take back what programs of ours that a test has run in this process did to files to come."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(autouse=True, scope="module")
def _no_login_of_another_service() -> Iterator[None]:
    """Let no module log in at the service of another: JupyterHub keeps one per process, with the service's scopes."""
    yield
    HubOAuth.clear_instance()
    HubAuth.clear_instance()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A temporary folder whose path leaves room for unix sockets in it."""
    with TemporaryDirectory(prefix="c") as folder:
        yield Path(folder)


def _clear(application: type[Application]) -> None:
    application.clear_instance()
    for each in application.__subclasses__():
        _clear(each)
