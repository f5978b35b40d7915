"""Object storage as folders without root, by FUSE: in a mount namespace of the test's own, with /dev/fuse for all.

Debian's udev gives /dev/fuse to everybody; a machine without udev may not.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.s3 import NODE_RCLONE, s3_server
from rig.staging import StagedNode

#: Arguments: the device to make, carme-stage, its folder, the user, the folder that appears, what carme-stage-out is.
STORY = r"""
set -e
mknod "$1" c 10 229; chmod 666 "$1"; mount --bind "$1" /dev/fuse
runuser -u "$4" -- env -i PATH="$PATH" HOME="$6" /usr/bin/python3 -IS "$2" "$3" mount & holder=$!
for _ in $(seq 200); do [ -e "$3/mounted.json" ] && break; sleep 0.05; done
runuser -u "$4" -- cat "$5/part.bin" | sha256sum
runuser -u "$4" -- sh -c 'echo no > "$1/new"' - "$5" 2>/dev/null && echo WRITABLE
ls "$5" 2>/dev/null && echo ROOT-READS
if [ "$8" = KILL ]; then kill -9 $(pgrep -f "rclone mount s3:bucket/set $5"); fi
kill -TERM $(pgrep -f "$2 $3 mount" | tail -1); wait $holder || true
SLURM_JOB_ID=7 SLURM_JOB_UID=$(id -u "$4") "$7" epilog
grep -c "$5" /proc/self/mounts || true
"""


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="carme-mount-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder).resolve()


@pytest.mark.parametrize("end", ["TERM", "KILL"])
def test_objects_are_files_for_the_user_alone_read_only_and_gone_after_the_end(base: Path, end: str) -> None:
    content = os.urandom(2 << 20)
    with s3_server(base / "buckets") as s3:
        (s3.folder / "bucket" / "set").mkdir(parents=True)
        (s3.folder / "bucket" / "set" / "part.bin").write_bytes(content)
        (base / "node").mkdir()
        node = StagedNode(base / "node")
        settings = node.home / ".config/rclone/rclone.conf"
        node.write(settings, s3.settings().encode())
        settings.chmod(0o600)
        node.begin(mount=[{"source": "s3:bucket/set", "target": "set"}], rclone=NODE_RCLONE, gib=1)
        program, folder = node.program.with_name("carme-stage"), node.top / "objects" / "set"
        words = [base / "fuse", program, node.stage, node.user, folder, node.home, node.program, end]
        done = subprocess.run(
            ["unshare", "-m", "bash", "-c", STORY, "story", *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )
    assert done.stdout.split() == [hashlib.sha256(content).hexdigest(), "-", "0"], (done.stdout, done.stderr)
    assert node.nothing_left(), done.stderr


#: Arguments: the device, rclone, the user, its home, a folder in scratch, carme-stage-out, what root must leave alone.
EXCHANGE = r"""
set -e
mknod "$1" c 10 229; chmod 666 "$1"; mount --bind "$1" /dev/fuse
mount -t tmpfs roots "$7"
runuser -u "$3" -- mkdir -p "$5/a b/$(basename "$7")"
runuser -u "$3" -- env -i PATH="$PATH" HOME="$4" "$2" mount s3:bucket "$5/a b/$(basename "$7")" --daemon
grep -q "$5/a.040b" /proc/self/mounts
runuser -u "$3" -- mv "$5/a b" "$5/c d"
runuser -u "$3" -- ln -s "$(dirname "$7")" "$5/a b"
SLURM_JOB_ID=7 SLURM_JOB_UID=$(id -u "$3") "$6" epilog
mountpoint -q "$7" && echo LEFT-ALONE
grep -c "$(dirname "$5")" /proc/self/mounts || true
"""


def test_mounts_that_a_user_made_go_and_a_link_in_their_path_leads_root_nowhere(base: Path) -> None:
    with s3_server(base / "buckets") as s3:
        (s3.folder / "bucket").mkdir()
        for name in ("node", "mnt", "mnt/precious"):
            (base / name).mkdir()
        node = StagedNode(base / "node")
        settings = node.home / ".config/rclone/rclone.conf"
        node.write(settings, s3.settings().encode())
        settings.chmod(0o600)
        node.begin(out=[{"source": "run", "target": f"{node.target}/run"}])
        node.write(node.data / "run" / "model", b"weights")
        words = [base / "fuse", NODE_RCLONE, node.user, node.home, node.data, node.program, base / "mnt" / "precious"]
        done = subprocess.run(
            ["unshare", "-m", "bash", "-c", EXCHANGE, "exchange", *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )
    assert done.stdout.split() == ["LEFT-ALONE", "0"], (done.stdout, done.stderr)
    assert (node.target / "run" / "model").read_bytes() == b"weights"
    assert node.nothing_left(), done.stderr
