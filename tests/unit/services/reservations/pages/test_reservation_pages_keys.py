"""What is sent again, since its answer was lost, has the key that it had: it is booked once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from carme_hub.paths import share_folder

NODE = Path(sys.executable).with_name("node")
pytestmark = pytest.mark.skipif(not NODE.exists(), reason="node comes with the extra named test")


def test_one_key_for_as_long_as_the_same_is_asked() -> None:
    module = json.dumps((share_folder() / "static" / "reservations-rest.js").as_uri())
    code = f"""
        globalThis.document = {{ getElementById: () => null }};
        const {{ Keys }} = await import({module});
        const keys = new Keys();
        const of = (start, wait) => keys.of({{ title: "Class", start, wait }});
        const said = [of(9, false), of(9, false), of(10, false), of(9, true), of(9, true)];
        keys.done();
        console.log(JSON.stringify([...said, of(9, true), new Keys().of({{}})]));
    """
    argv = [str(NODE), "--input-type=module", "-e", code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    first, again, later, waits, lost, next_one, other = json.loads(done.stdout)
    assert first == again, "its answer was lost"
    assert waits == lost
    assert len({first, later, waits, next_one, other}) == 5
