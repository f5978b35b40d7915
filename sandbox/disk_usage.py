"""Print how full the file system of a user's home is, for ``CarmeQuotas.disk_usage_command``.

The hub's user cannot read homes, and the sandbox's homes have no quota: so the figures cover all users with files on
that file system, which ``shared`` states. A site with a quota for each user queries that: ``lfs quota``, ``quota``,
``zfs get userspace@USER``, a database.
"""

from __future__ import annotations

import json
import os
import pwd
import sys


def main(user: str) -> None:
    """Print the JSON document that the service reads."""
    home = pwd.getpwnam(user).pw_dir
    place = home
    while not os.path.isdir(place):  # noqa: PTH112 - it starts for each query, so it imports little
        place = os.path.dirname(place)  # noqa: PTH120
    disk = os.statvfs(place)
    used, limit = (disk.f_blocks - disk.f_bfree) * disk.f_frsize, disk.f_blocks * disk.f_frsize
    while not os.path.ismount(place):
        place = os.path.dirname(place)  # noqa: PTH120
    print(json.dumps({"path": place, "used_bytes": used, "limit_bytes": limit, "shared": True}))


if __name__ == "__main__":
    main(sys.argv[1])
