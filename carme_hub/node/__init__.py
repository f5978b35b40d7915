"""Programs that run on compute nodes.

Each is one constant file that needs the standard library alone and imports nothing of this package. The hub reads the
files (``spawners/job_script.py``) and sends their text with each job, so a node needs no installation.
"""

from pathlib import Path


def program(name: str) -> str:
    """Return the text of a program: ``program("batch_script")``, ``program("staging/job")``."""
    return (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
