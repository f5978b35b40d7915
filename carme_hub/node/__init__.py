"""Programs that run on compute nodes: constant files of the standard library alone, which import nothing of ours.

The hub reads their texts and sends them with each job, so that nothing of ours has to be installed on a node.
"""

from pathlib import Path


def program(name: str) -> str:
    """Return the text of a program: ``program("batch_script")``."""
    return Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
