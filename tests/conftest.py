"""Fixtures for tests on real parts; tests that need nothing real do not use them."""

from __future__ import annotations

import gc
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from rig.fixtures import cluster, demo_hub, hub, hub_environment, open_path, quiet, site
from rig.nightly import NIGHTLY, is_left, names_nothing

__all__ = ["cluster", "demo_hub", "hub", "hub_environment", "open_path", "quiet", "site"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Of a shell that started this in the background. Programs of tests would inherit it, and none could be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to the nightly run what is for it alone."""
    whole = all(Path(str(arg)).is_dir() for arg in config.args) and not config.option.keyword
    if whole and (stale := names_nothing(items)):
        raise pytest.UsageError(f"tests/rig/nightly.py names tests that are not there: {'; '.join(stale)}")
    left = set() if NIGHTLY else {item for item in items if is_left(item)}
    if left:
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect ten thousand tests without a look for garbage, and have none go through all of them later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
