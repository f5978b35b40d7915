"""Values read from TensorBoard's page."""

from __future__ import annotations

import re

from playwright.sync_api import Page


def last_step(page: Page) -> int:
    """Return the last step in the curve's table, -1 where there is none."""
    cells = page.locator("scalar-card tb-data-table-content-row").first.inner_text()
    found = re.findall(r"^\s*(\d+)\s*$", cells, re.MULTILINE)
    return int(found[-1]) if found else -1
