"""Says how full a user's home is, for ``CarmeQuotas.disk_usage_command``: here that is its whole file system.

A site has a quota for each user, and asks that: ``lfs quota``, ``quota``, ``zfs get userspace@USER``, a database.
"""

from __future__ import annotations

import json
import os
import pwd
import sys


def main(user: str) -> None:
    """Print what the service reads."""
    home = pwd.getpwnam(user).pw_dir
    place = home
    while not os.path.isdir(place):  # noqa: PTH112 - started for each question, so it imports little
        place = os.path.dirname(place)  # noqa: PTH120
    disk = os.statvfs(place)
    used, limit = (disk.f_blocks - disk.f_bfree) * disk.f_frsize, disk.f_blocks * disk.f_frsize
    print(json.dumps({"path": home, "used_bytes": used, "limit_bytes": limit}))


if __name__ == "__main__":
    main(sys.argv[1])
