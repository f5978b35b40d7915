"""Ansible's way onto a booted machine of the site: by nsenter, as ``Machine.run``, in place of SSH."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
name: nsenter
short_description: Run in the namespaces of a process
description: Runs as root in all namespaces of a process of this machine, with its file system.
options:
  pid:
    description: The process.
    type: int
    required: true
    vars:
      - name: ansible_nsenter_pid
"""


class Connection(ConnectionBase):
    """Programs on one machine; files go through their standard input and output."""

    transport = "nsenter"
    has_pipelining = True

    def _connect(self):
        self._connected = True
        return self

    def exec_command(self, cmd, in_data=None, sudoable=True):
        """Run a command by the shell; return its status, output and errors."""
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        done = subprocess.run(self._argv(cmd), input=in_data or b"", capture_output=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def put_file(self, in_path, out_path):
        """Copy a file to the machine."""
        with Path(in_path).open("rb") as file:
            self._copy(f"cat >{shlex.quote(out_path)}", stdin=file)

    def fetch_file(self, in_path, out_path):
        """Copy a file from the machine."""
        with Path(out_path).open("wb") as file:
            self._copy(f"cat {shlex.quote(in_path)}", stdout=file)

    def _copy(self, cmd, **files):
        done = subprocess.run(self._argv(cmd), stderr=subprocess.PIPE, check=False, **files)
        if done.returncode:
            raise AnsibleConnectionFailure(f"{cmd}: {done.stderr.decode(errors='replace')}")

    def _argv(self, cmd):
        argv = [
            "nsenter",
            f"--target={self.get_option('pid')}",
            "--mount",
            "--uts",
            "--ipc",
            "--net",
            "--pid",
            "--cgroup",
        ]
        argv += ["--root", "--wd", "--", "/usr/bin/env", "-i", "LC_ALL=C.UTF-8", "HOME=/root", "TERM=dumb"]
        argv += ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
        return [*argv, "/bin/sh", "-c", cmd]

    def close(self):
        """Nothing stays open."""
        self._connected = False
