"""The forged watch that the tests of idle sessions share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from forged_idle import Lab

from carme_hub.store.engine import CarmeStore


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    engine = CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open()
    yield Lab(engine)
    engine.dispose()
