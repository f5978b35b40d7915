"""A program that runs as the user with the standard library alone: write the data file, call sbatch, print the job id.

``submitters.DirectSubmitter`` starts it as ``python3 -I -c <this text>``, and it reads one JSON document from stdin:
``{"spec": {JobSpec without data}, "data": base64}``. So the user owns the file from the start, root never opens a path
of the user, and no argv contains a secret. The answer is the job id on stdout, or ``{"error": message}`` on stderr with
exit status 1 (refused) or 2 (unknown whether a job exists).
"""

from __future__ import annotations

import base64
import errno
import json
import os
import pwd
import stat
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

REFUSED, UNKNOWN = 1, 2
#: The same text as in carme_hub.domain.cluster.reasons, which turns it into a sentence with the folder.
NO_WORKING_FOLDER = "the working folder does not exist"
#: The initial PATH of a job, independent of the hub's.
JOB_PATH = "/usr/local/bin:/usr/bin:/bin"


def sbatch_options(spec: dict[str, Any], home: str) -> list[str]:
    """Return sbatch's options; ours come last and override the administrator's."""
    gpus = spec["gpus"]
    nodes = int(spec.get("nodes", 1))
    options = [f"--{name}={value}" if value else f"--{name}" for name, value in spec["extra"].items()]
    options += [
        "--parsable",
        "--no-requeue",
        f"--job-name={spec['name']}",
        "--input=/dev/null",
        "--output=/dev/null",
        "--error=/dev/null",
        "--open-mode=append",
        f"--chdir={home}",
        "--export=ALL",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        f"--cpus-per-task={int(spec['cpus'])}",
        f"--mem={int(spec['memory_mib'])}M",
        f"--time={int(spec['time_limit'])}",
    ]
    if nodes > 1:  # otherwise Slurm might put two tasks on one node
        options.append("--ntasks-per-node=1")
    if gpus["count"]:  # --gres is for each node
        options.append(f"--gres=gpu:{gpus['type']}:{int(gpus['count']) // nodes}")
    options += [f"--{name}={spec[name]}" for name in ("account", "partition", "qos", "reservation") if spec[name]]
    if spec.get("exclude"):
        options.append(f"--exclude={spec['exclude']}")
    if spec.get("node"):
        options.append(f"--nodelist={spec['node']}")
    if spec.get("nice"):
        options.append(f"--nice={int(spec['nice'])}")
    return options


def write_data(folder: str, data: bytes) -> None:
    """Write data.json, mode 0600, into the session folder, mode 0700."""
    os.umask(0o077)
    Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    target = Path(folder) / "data.json"
    target.unlink(missing_ok=True)
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def lacks_folder(spec: dict[str, Any], data: bytes, home: str) -> bool:
    """Return whether the working folder is certainly missing, so that no job has to start to find out.

    This is certain only for a folder in the user's home if the session folder, which the node reads, is in it too, so
    that both see the same home. Elsewhere, and behind links, the node may have folders that are missing here.
    """
    try:
        own = json.loads(data)["singleuser"]
        binds = json.loads(data)["binds"]
        folder, make = own["folder"], own["make_folder"]
    except (ValueError, KeyError, TypeError):
        return False
    if make or not spec["session_folder"].startswith(f"{home}/") or not folder.startswith(f"{home}/"):
        return False
    for source, target, _ in binds:
        if target.startswith(f"{home}/") or (f"{home}/".startswith(f"{target.rstrip('/')}/") and source != target):
            return False
    path = home
    for part in folder[len(home) + 1 :].split("/"):
        path = os.path.join(path, part)  # noqa: PTH118
        try:
            if part == ".." or stat.S_ISLNK(os.lstat(path).st_mode):
                return False
        except FileNotFoundError:
            return True
        except OSError:
            return False
    return False


def fail(words: str, code: int) -> int:
    """Print an error for the hub and return the exit status."""
    sys.stderr.write(json.dumps({"error": words}) + "\n")
    return code


def main() -> int:
    """Run the program; see the module docstring."""
    document = json.load(sys.stdin)
    spec = document["spec"]
    who = pwd.getpwuid(os.getuid())
    if who.pw_name != spec["user"]:
        return fail(f"this runs as {who.pw_name}, not as {spec['user']}", REFUSED)
    data = base64.b64decode(document["data"])
    if lacks_folder(spec, data, who.pw_dir):
        return fail(NO_WORKING_FOLDER, REFUSED)
    more = {}
    try:
        write_data(spec["session_folder"], data)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return fail(f"the session folder cannot be written: {error}", REFUSED)
        # The home is full: the job brings its data itself, and keeps its files on the node (node/full_home.py).
        more["CARME_DATA"] = base64.b64encode(zlib.compress(data)).decode("ascii")
    keep = {name: os.environ[name] for name in ("SLURM_CONF", "LANG") if name in os.environ}
    own = {
        "PATH": JOB_PATH,
        "HOME": who.pw_dir,
        "USER": who.pw_name,
        "LOGNAME": who.pw_name,
        "SHELL": who.pw_shell or "/bin/sh",
    }
    try:
        done = subprocess.run(
            [os.environ.get("CARME_SBATCH", "sbatch"), *sbatch_options(spec, who.pw_dir)],
            input=spec["script"],
            env={**keep, **own, **spec["environment"], **more},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except OSError as error:
        return fail(f"sbatch cannot be started: {error}", REFUSED)
    if done.returncode == 0:
        sys.stdout.write(done.stdout.strip().partition(";")[0] + "\n")
        return 0
    return fail(done.stderr.strip() or f"sbatch exited with {done.returncode}", UNKNOWN)


if __name__ == "__main__":
    sys.exit(main())
