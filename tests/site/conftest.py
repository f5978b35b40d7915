"""The second site: built and installed once, for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from machines import only_one
from second_site import SecondSite
from trees import say


@pytest.fixture(scope="session")
def second_site() -> Iterator[SecondSite]:
    """Return the site with the hub that the docs install by hand; everything is gone afterwards."""
    if os.geteuid() != 0:
        raise pytest.UsageError("tests/site boots machines: run it as root")
    with only_one():
        site = SecondSite()
        try:
            site.build()
            site.follow(site.by_hand)
            yield site
        finally:
            site.tear_down()
            for what, seconds in site.seconds.items():
                say(f"{seconds:6.1f} s  {what}")
