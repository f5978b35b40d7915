"""The end of a session's ``job.log``: by the site's command, or from the user's home where this process may read it.

The home belongs to the user, and this process may be root: each folder is opened by itself, no link is followed, and
the file must be the user's own.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Sequence

from carme_hub.errors import CarmeError
from carme_hub.slurm.command import Commands

#: Bytes of a log that are read from its end.
TAIL = 8192
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LogUnread(CarmeError):
    """The log of a job cannot be read; the message says why."""


async def by_command(commands: Commands, argv: Sequence[str], user: str, session: str) -> str:
    """Return the end of a log by ``CarmeSlurm.tail_command``.

    Raises:
        LogUnread: the command failed. SlurmUnreachable: it did not answer.
    """
    answer = await commands.run([*argv, user, session])
    if answer.code != 0:
        raise LogUnread(answer.message)
    return answer.out


def by_file(user: str, session: str, homes: str = "") -> tuple[str, float]:
    """Return the end of a log in the user's home, and when it was last written, UTC epoch seconds.

    Args:
        homes: as ``hub_config.homes_of``.

    Raises:
        LogUnread: it cannot be read from here.
    """
    raw, changed = read_file(user, session, "job.log", TAIL + 1, homes)
    if len(raw) > TAIL:  # from the beginning of a line: of a secret that is cut nobody sees that it is one
        raw = re.split(rb"[\r\n]", raw, maxsplit=1)[-1] if re.search(rb"[\r\n]", raw) else b""
    return raw.decode("utf-8", "replace"), changed


def read_file(user: str, session: str, name: str, most: int, homes: str = "") -> tuple[bytes, float]:
    """Return the end of a file of a session folder in the user's home, and when it was last written.

    Raises:
        LogUnread: it cannot be read from here.
    """
    try:
        person = pwd.getpwnam(user)
    except KeyError:
        raise LogUnread(f"this machine does not know the user {user}") from None
    opened: list[int] = []
    try:
        home = homes.format(username=user) if homes else person.pw_dir
        opened.append(os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for part in (".carme", "sessions", session):
            opened.append(os.open(part, _FOLDER, dir_fd=opened[-1]))
        opened.append(os.open(name, _FILE, dir_fd=opened[-1]))
        status = os.fstat(opened[-1])
        if not stat.S_ISREG(status.st_mode) or status.st_uid != person.pw_uid:
            raise LogUnread("it is not a regular file of the user")
        return os.pread(opened[-1], most, max(0, status.st_size - most)), status.st_mtime
    except FileNotFoundError:
        raise LogUnread(f"the session folder has no {name} that is seen from this machine") from None
    except OSError as error:
        raise LogUnread(f"{error.strerror}; set CarmeSlurm.tail_command") from error
    finally:
        for each in opened:
            os.close(each)
