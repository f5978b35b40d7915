"""Named points at which a test can kill the process, to prove that nothing is lost there.

A point does something only where the environment holds both ``CARME_TEST_BUILD=1`` and ``CARME_CRASH_AT=<label>``.
The labels are listed in docs/reference/crash-points.md.
"""

from __future__ import annotations

import os


def crash_point(label: str) -> None:
    """Kill this process as ``kill -9`` does, if a test has selected this label."""
    if os.environ.get("CARME_TEST_BUILD") == "1" and os.environ.get("CARME_CRASH_AT") == label:
        os.kill(os.getpid(), 9)
