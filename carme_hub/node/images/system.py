#!/usr/bin/env python3
# ruff: noqa: PTH100, PTH102, PTH103, PTH105, PTH108, PTH112, PTH113, PTH114, PTH115
# ruff: noqa: PTH118, PTH120, PTH123, PTH202, PTH208, PTH211, SIM105
"""Builds an image of a user by a Containerfile: a whole system in a folder, by the node's buildah, without root.

The batch script of the build runs it as ``/usr/bin/python3 carme-build FOLDER`` outside of any container, with the
session folder, which has ``build.json``, ``buildah.py`` and ``layer.py``. Containers and layers are in a folder of
this node that is removed at the end; the result goes to ``~/.carme/images/ID.part/rootfs``, and the folder becomes
``~/.carme/images/ID`` when it is complete and within its bounds.

The user is root in a user namespace with one uid, so no range of further uids is needed, which people of a directory
have none of.
"""

import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from carme_hub.node.images import buildah as tool
    from carme_hub.node.images import layer as parts
else:  # beside this file, which is a file of the session folder
    sys.dont_write_bytecode, _before = True, sys.dont_write_bytecode
    _spec = importlib.util.spec_from_file_location(
        "carme_buildah", os.path.join(os.path.dirname(os.path.abspath(__file__)), "buildah.py")
    )
    tool = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(tool)
    parts = tool.parts
    sys.dont_write_bytecode = _before

#: Exit codes beside those of ``layer``: a program that the node lacks, and no user namespaces.
NO_PROGRAM, NO_NAMESPACE = 64, 63
#: Words by which this program runs another one with the answers to a root's questions, and itself as that root.
AS_ROOT, INSIDE = "--as-root", "--inside"
#: What a session needs, by name in PATH.
NEEDED = ("python3", "jupyterhub-singleuser")
_RESULT, _BASE, _OUT = "localhost/carme-result", "localhost/carme-base-{}", "carme-out"
_APT = "/etc/apt/apt.conf.d/99carme-build"
_ACCEPT = '{"default": [{"type": "insecureAcceptAnything"}]}\n'
_POLICY = "/etc/containers/policy.json"


def check_node() -> None:
    """Refuse a node that cannot build.

    Raises:
        CannotBuild: a program is missing, or there are no user namespaces.
    """
    for name in ("buildah", "unshare"):
        if shutil.which(name) is None:
            raise parts.CannotBuild(
                NO_PROGRAM,
                f"{name} is not on this node ({platform.node()}), and a Containerfile needs it. Choose another "
                f"profile, or ask an administrator to install {'buildah' if name == 'buildah' else 'util-linux'}",
            )
    argv = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=60)
    if done.returncode:
        raise parts.CannotBuild(
            NO_NAMESPACE,
            f"this node ({platform.node()}) gives users no user namespaces, by which a Containerfile is built: "
            f"{done.stdout.decode(errors='replace').strip()[-200:]}. Ask an administrator",
        )


def fetch(buildah: "tool.Buildah", number: int, base: "dict[str, Any]") -> str:
    """Make a base known to buildah under its local name, and return the digest of one of a registry.

    Raises:
        CannotBuild: it is not there.
    """
    name = _BASE.format(number)
    if base["kind"] == "registry":
        reference = "docker://{}".format(base["reference"])
        parts.say("fetching {}".format(base["reference"]))
        options = ["--quiet", *(["--tls-verify=false"] if base.get("plain") else [])]
        if not os.path.isfile(_POLICY):
            policy = os.path.join(buildah.work, "policy.json")
            with open(policy, "w", encoding="utf-8") as file:
                file.write(_ACCEPT)
            options += ["--signature-policy", policy]
        image = buildah.ask("pull", *options, reference).split()[-1]
        digest = buildah.ask("inspect", "--type", "image", "--format", "{{.FromImageDigest}}", image)
        buildah.ask("tag", image, name)
        parts.say("{} is {}".format(base["reference"], digest))
        return digest
    if not os.path.isdir(base["path"]):
        raise parts.CannotBuild(
            parts.NOT_FOUND, "{name}, on top of which it is built, is not on this node: {path}".format(**base)
        )
    parts.say("copying {}".format(base["name"]))
    container = buildah.ask("from", "--name", f"carme-from-{number}", "scratch")
    place = buildah.ask("mount", container)
    left = buildah.copy(base["path"], place)
    if left:
        parts.say(f"{left} files that only root may read are left out")
    for own in ("image.json", "image.yaml", "image.files.gz"):
        if os.path.lexists(os.path.join(place, own)):
            os.unlink(os.path.join(place, own))
    words = [word for key, value in base["environ"].items() for word in ("--env", f"{key}={value}")]
    if words:
        buildah.ask("config", *words, container)
    buildah.ask("commit", "--quiet", "--rm", container, name)
    return str(base.get("digest", ""))


def context_of(build: "dict[str, Any]", empty: str) -> str:
    """Return the folder whose files it may take.

    Raises:
        CannotBuild: it is not there, or not in the user's home.
    """
    if not build["context"]:
        return empty
    home, found = os.path.realpath(os.environ["HOME"]), os.path.realpath(build["context"])
    if not found.startswith(home.rstrip("/") + "/") or not os.path.isdir(found):
        raise parts.CannotBuild(
            parts.NOT_FOUND, "{} is not a folder in your home on this node".format(build["context"])
        )
    return found


def bake(buildah: "tool.Buildah", build: "dict[str, Any]", rootfs: str) -> None:
    """Build the image, and put its system into a folder."""
    file, apt = os.path.join(buildah.work, "Containerfile"), os.path.join(buildah.work, "apt.conf")
    with open(file, "w", encoding="utf-8") as opened:
        opened.write(build["containerfile"])
    with open(apt, "w", encoding="utf-8") as opened:
        opened.write('APT::Sandbox::User "root";\n')  # apt looks whether it has become another user
    options = ["--isolation", "chroot", "--pull-never", "--layers=false", "--format", "oci", "--file", file]
    options += ["--volume", f"{apt}:{_APT}:ro"]
    options += [f"--build-arg={name}={value}" for name, value in build["environ"].items()]
    context = context_of(build, os.path.join(buildah.work, "empty"))
    buildah.run("bud", *options, "--tag", _RESULT, context, network=buildah.network)
    buildah.ask("from", "--pull-never", "--name", _OUT, _RESULT)
    place = buildah.ask("mount", _OUT)
    size = parts.size_of(place)[0]
    if size > buildah.most:
        most = parts.mib(buildah.most)
        raise parts.CannotBuild(
            parts.TOO_LARGE, f"the image takes {parts.mib(size)}, more than the {most} that one may have here"
        )
    os.mkdir(rootfs, 0o700)
    buildah.copy(place, rootfs)
    buildah.call(["chmod", "--recursive", "u+rwX,ug-s", "--", rootfs])


def prepare(rootfs: str, build: "dict[str, Any]") -> None:
    """Make a system ready for containers of sessions.

    Raises:
        CannotBuild: a session could not start with it.
    """
    trace = rootfs + _APT
    if os.path.isfile(trace) and not os.path.islink(trace) and not os.path.getsize(trace):
        os.unlink(trace)
    for folder in build["folders"]:
        if not os.path.lexists(os.path.join(rootfs, folder)):
            os.makedirs(os.path.join(rootfs, folder), exist_ok=True)
    for name in build["files"]:
        path = os.path.join(rootfs, name)
        if os.path.islink(path):
            os.unlink(path)  # as /etc/resolv.conf, to a file of a running system
        if not os.path.lexists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8"):
                pass
    for name in os.listdir(rootfs):  # a runtime that binds folder by folder follows these from outside
        path = os.path.join(rootfs, name)
        if os.path.islink(path) and os.readlink(path).startswith("/"):
            target = os.readlink(path).lstrip("/")
            os.unlink(path)
            os.symlink(target or ".", path)
    for name in NEEDED:
        places = [os.path.join(folder, name) for folder in build["path"].split(":")]
        if not any(os.path.lexists(rootfs + place) for place in places):
            raise parts.CannotBuild(
                parts.NOT_FOUND,
                f"the image has no {name} in {build['path']}, so no session could start with it. Begin with an image "
                "of the site that has it, or install jupyterhub and jupyterlab",
            )


def make(build: "dict[str, Any]", home: str, work: str) -> str:
    """Build the image, and return its folder; runs as root of the namespace.

    Raises:
        CannotBuild: it could not be built.
    """
    images = os.path.join(home, ".carme", "images")
    parts.remove_old(images, build.get("remove", []))
    layer, done = os.path.join(images, build["id"] + ".part"), os.path.join(images, build["id"])
    shutil.rmtree(layer, ignore_errors=True)
    os.makedirs(layer, 0o700)
    buildah = tool.Buildah(work, int(build["bytes"]), network=bool(build["network"]))
    parts.say("image {name} by a Containerfile".format(**build))
    for note in build["notes"]:
        parts.say(note)
    buildah.choose_driver()
    digests = {base["reference"]: fetch(buildah, number, base) for number, base in enumerate(build["bases"])}
    rootfs = os.path.join(layer, "rootfs")
    bake(buildah, build, rootfs)
    prepare(rootfs, build)
    size, files = parts.size_of(rootfs)
    parts.say(f"built: {parts.mib(size)} in {files} files")
    parts.describe(layer, build, {"packages": {}, "python": "", "more": {"bases": digests}})
    os.replace(layer, done)
    return done


def work_folder(id: str) -> str:
    """Return a folder of this node for the build.

    Raises:
        CannotBuild: there is no place for one.
    """
    for place in (os.environ.get("TMPDIR", ""), "/var/tmp", "/tmp"):  # noqa: S108  the name is not to be foreseen
        if place and os.path.isdir(place) and os.access(place, os.W_OK):
            return tempfile.mkdtemp(prefix=f"carme-build-{id}-", dir=place)
    raise parts.CannotBuild(NO_PROGRAM, "this node has no folder for temporary files")


def remove_trees(*trees: str) -> None:
    """Remove folders; as root of a namespace, since folders in them may be closed to their owner."""
    argv = ["unshare", "--user", "--map-root-user", "rm", "-rf", "--", *trees]
    try:
        subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    except OSError:
        pass
    for tree in trees:
        shutil.rmtree(tree, ignore_errors=True)


def _ended(number: int, _frame: "Any") -> None:
    raise parts.CannotBuild(128 + number, "it was ended before it was complete")


def _ended_inside(number: int, _frame: "Any") -> None:
    sys.exit(128 + number)  # what buildah runs ends with it, and who began this says so


def build_inside(folder: str, build: "dict[str, Any]") -> int:
    """Build in a user namespace, in a process of its own, and leave nothing of what is not complete.

    Raises:
        CannotBuild: this node cannot build, or the build was ended.
    """
    check_node()
    work = work_folder(build["id"])
    argv = [sys.executable, "-IS", os.path.abspath(__file__)]
    argv = [*argv, AS_ROOT, "unshare", "--user", "--map-root-user", "--mount", "--", *argv, INSIDE, folder, work]
    begun = tool.Begun(argv)
    try:
        return int(begun.wait())
    finally:
        begun.end(5.0)
        remove_trees(work, os.path.join(os.environ["HOME"], ".carme", "images", build["id"] + ".part"))


def main(arguments: "list[str]") -> int:
    """Build the image that ``build.json`` of the session folder describes."""
    if arguments[:1] == [AS_ROOT]:
        tool.become_root(arguments[1:])
    inside = arguments[:1] == [INSIDE]
    folder, *rest = arguments[1:] if inside else arguments
    os.umask(0o022)
    signal.signal(signal.SIGTERM, _ended_inside if inside else _ended)

    def work() -> int:
        build = parts.description(folder)
        if not inside:
            return build_inside(folder, build)
        make(build, os.environ["HOME"], rest[0])
        return int(parts.ready(build))

    return int(parts.exit_code(work))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
