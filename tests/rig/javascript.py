"""Runs a module of the pages in Node, as it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

NODE = Path(sys.executable).with_name("node")


def run_module(module: Path, code: str) -> Any:
    """Run JavaScript with a module as ``m``, and return what it gives as ``out``."""
    script = (
        f"const m = await import({json.dumps(module.as_uri())}); let out; {code}; console.log(JSON.stringify(out));"
    )
    done = subprocess.run(
        [str(NODE), "--no-warnings", "--input-type=module", "-e", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
