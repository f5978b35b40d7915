"""What `make test` leaves to `make nightly`.

A test, or one row of its table, that is marked ``nightly`` runs with ``CARME_NIGHTLY=1`` only: long repeats, every
earlier release, and what a change in one folder alone can break (a container runtime, a way to submit), where one
of its kind runs in `make test`. On PostgreSQL, tests of the store and of several processes at once run in `make test`;
the others prove there what they prove on SQLite. Hypothesis looks at its usual number of examples by night, and at a
fifth of them in `make test`.
"""

from __future__ import annotations

import os

import pytest
from _pytest.mark import ParameterSet
from hypothesis import HealthCheck, settings

NIGHTLY = os.environ.get("CARME_NIGHTLY") == "1"

# How fast examples come depends on the machine, not on the code.
settings.register_profile("nightly", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.register_profile("gate", settings.get_profile("nightly"), max_examples=20)
settings.load_profile("nightly" if NIGHTLY else "gate")


def nightly(*values: object) -> ParameterSet:
    """Return a row of a table for `parametrize` that only the nightly run takes."""
    return pytest.param(*values, marks=pytest.mark.nightly)


def is_left(item: pytest.Item) -> bool:
    """Tell whether a test is for the nightly run alone."""
    if item.get_closest_marker("nightly"):
        return True
    params = getattr(getattr(item, "callspec", None), "params", {})
    if params.get("database_url") != "postgresql":
        return False
    return "stores" not in getattr(item, "fixturenames", ()) and "store" not in item.path.parts
