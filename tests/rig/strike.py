"""Run a program and kill it with SIGKILL at one of its steps: ``strike.py WHO:N PROGRAM ARGUMENTS``.

WHO is "root" for the program itself, "user" for the carme-stage that it starts. The steps are counted from 1: calls
that change a file system, and writes, of which half is written. A program that has fewer steps ends as it does.
"""

import builtins
import os
import runpy
import signal
import subprocess
import sys

STEPS = (
    *("replace", "rename", "mkdir", "unlink", "rmdir", "symlink", "fsync", "ftruncate", "utime", "fchmod", "chmod"),
    *("chown", "posix_fallocate"),
)
who, _, number = sys.argv[1].partition(":")
left = int(number)


def step():
    """Count a step, and end here where it is the one."""
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)


def counted(call):
    """Return a call that is a step."""

    def wrapper(*args, **kwargs):
        step()
        return call(*args, **kwargs)

    return wrapper


class Torn:
    """A file whose writes are steps: the one that is struck writes half of what it should."""

    def __init__(self, file):
        self._file = file

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        self._file.__enter__()
        return self

    def __exit__(self, *args):
        return self._file.__exit__(*args)

    def __iter__(self):
        return iter(self._file)

    def write(self, data):
        """Write, or write half and end."""
        if left == 1:
            self._file.write(data[: len(data) // 2])
            self._file.flush()
        step()
        return self._file.write(data)


def torn(call):
    """Return a call that opens a file whose writes are steps."""

    def wrapper(*args, **kwargs):
        file = call(*args, **kwargs)
        return Torn(file) if getattr(file, "writable", lambda: False)() else file

    return wrapper


def torn_write(call):
    """Return os.write as a step, of which half is done where it is struck."""

    def wrapper(number, data):
        if left == 1:
            call(number, data[: len(data) // 2])
        step()
        return call(number, data)

    return wrapper


class Popen(subprocess.Popen):
    """Starts carme-stage below this program, so that it can be struck, too."""

    def __init__(self, argv, **kwargs):
        if "carme-stage" in str(argv[2:3]):
            argv = [*argv[:2], __file__, f"root:{number}", *argv[2:]]
        super().__init__(argv, **kwargs)


if who == "root":
    for name in STEPS:
        setattr(os, name, counted(getattr(os, name)))
    os.write = torn_write(os.write)
    os.fdopen, builtins.open = torn(os.fdopen), torn(builtins.open)
else:
    subprocess.Popen = Popen
program = sys.argv[2]
sys.argv = sys.argv[2:]
runpy.run_path(program, run_name="__main__")
