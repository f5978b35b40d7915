"""``carme-hub image build``, ``mine`` and ``discard``: images of a user's own.

The hub submits the build as a batch job of the user; its log is in the home, where this follows it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run_commands import print_text, say
from carme_hub.training.session.companions import Hub, NoHub, Refused
from carme_hub.training.session.outside import access, is_outside

from .hub_builds import MOST_LOG, builds_of_session, builds_of_user, log_part, open_build
from .wanted import Wanted, of_path, of_session

#: Seconds between two looks at the log, and for which the hub may not answer meanwhile.
LOOK, SILENCE = 2.0, 300.0
BUILDING, READY = "building", "ready"
_FAILED, _CANNOT, _STOPPED = 1, 2, 130


def main(words: Sequence[str]) -> int:
    """Run the command of these arguments, and return the exit status."""
    arguments = _parser().parse_args(list(words))
    try:
        return int(arguments.do(arguments))
    except CannotRun as error:
        say(f"carme-hub image: {error}")
        return _CANNOT
    except Refused as error:
        say(f"carme-hub image: {error}")
        return _FAILED
    except NoHub as error:
        say(f"carme-hub image: {error}")
        return _CANNOT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="carme-hub image", allow_abbrev=False)
    parts = parser.add_subparsers(required=True, metavar="build|mine|discard")
    build = parts.add_parser(
        "build",
        help="build an image of your own in a job",
        description="Build an image of your own in a job: by a Containerfile; or with the packages of a "
        "requirements.txt, of an environment.yml, or with --installed of this session, on top of an image of the site. "
        "A folder with one of these files will do. The log is printed; Ctrl-C leaves the job running. Exit status: 0 "
        "ready, 1 refused or failed, 2 the hub was not reached.",
    )
    what = build.add_mutually_exclusive_group(required=True)
    what.add_argument("path", nargs="?", default="", help="a file, or a folder with one")
    what.add_argument("--installed", action="store_true", help="what pip has installed in this session")
    build.add_argument("--name", default="", help="how the image is called (default: as the folder)")
    build.add_argument("--description", default="", help="one line for the form")
    build.add_argument("--minutes", type=int, default=30, help="how long the job may take (default: 30)")
    build.add_argument("--detach", action="store_true", help="do not wait for the end")
    build.add_argument(
        "--option", action="append", default=[], help="outside of a session: NAME=VALUE of the form, as image=default"
    )
    build.set_defaults(do=_build)
    mine = parts.add_parser("mine", help="list the images that you have built")
    mine.set_defaults(do=_mine)
    discard = parts.add_parser("discard", help="remove an image of your own, or end its build")
    discard.add_argument("name")
    discard.set_defaults(do=_discard)
    for each in (build, mine, discard):
        each.add_argument("--hub", default="", help="outside of a session: the hub's address")
        each.add_argument("--token-file", default="", help="outside of a session: file with a token, mode 0600")
        each.add_argument("--ca", default="", help="outside of a session: file with the authorities to trust")
    return parser


def _hub(arguments: argparse.Namespace, options: Mapping[str, str] | None = None) -> Hub:
    """Return the hub's interface for the images of the user."""
    if is_outside():
        reached = access(arguments.hub, arguments.token_file, arguments.ca, options or {}, os.environ).connect()
    elif arguments.hub or arguments.token_file or arguments.ca:
        raise CannotRun("--hub, --token-file and --ca are for outside of a session: here it is the session's hub.")
    else:
        return builds_of_user()
    return replace(reached, url=reached.url.removesuffix("batch-jobs") + "image-builds")


def _build(arguments: argparse.Namespace) -> int:
    pairs = [word.partition("=") for word in arguments.option]
    if any(not name or not sign for name, sign, _ in pairs):
        raise CannotRun("--option is NAME=VALUE, as in the form that starts servers.")
    if pairs and not is_outside():
        raise CannotRun("--option is for outside of a session: here the image is built on top of the session's.")
    wanted = of_session() if arguments.installed else of_path(Path(arguments.path))
    hub = _hub(arguments, {name: value for name, _, value in pairs})
    build = _open(hub, wanted, arguments)
    say(f"Image {build['name']} on top of {build['base']}: job {build.get('job') or 'is being submitted'}.")
    for warning in build.get("warnings", ()):
        say(str(warning))
    if arguments.detach:
        print_text(f"{build['name']}\n")
        return 0
    try:
        return _follow(hub, str(build["id"]))
    except KeyboardInterrupt:
        say(f"The job goes on. `carme-hub image mine` shows it, `carme-hub image discard {build['name']}` ends it.")
        return _STOPPED


def _open(hub: Hub, wanted: Wanted, arguments: argparse.Namespace) -> dict[str, Any]:
    body: dict[str, Any] = {"kind": wanted.kind, "text": wanted.text, "name": arguments.name or wanted.name}
    body |= {"minutes": arguments.minutes, "description": arguments.description}
    body |= {"context": wanted.context} if wanted.context else {}
    key = uuid.uuid4().hex
    if is_outside():
        body["options"] = dict(hub.options)
        return open_build(hub, body, key)
    return open_build(builds_of_session(), body, key)


def _follow(hub: Hub, id: str) -> int:
    """Print the log until the build has ended."""
    at, answered = 0, time.monotonic()
    while True:
        try:
            build = hub.ask("GET", f"/{id}")
            answered = time.monotonic()
        except NoHub:
            if time.monotonic() - answered > SILENCE:
                raise
            build = {"state": BUILDING}
        at = _print_log(hub, id, at)
        if build["state"] == READY:
            return 0
        if build["state"] != BUILDING:
            say(f"Image {build['name']} is not built: {build.get('problem') or build['state']}")
            return _FAILED
        time.sleep(LOOK)


def _print_log(hub: Hub, id: str, at: int) -> int:
    """Print what is new in the log, and return where it ends."""
    while True:
        text, end = log_part(hub, id, at)
        sys.stdout.write(text)
        sys.stdout.flush()
        if end - at < MOST_LOG // 2:
            return end
        at = end


def _mine(arguments: argparse.Namespace) -> int:
    said = _hub(arguments).ask("GET", "")
    found = said.get("image_builds", [])
    _remove_files(said.get("removed", []))
    if not found:
        say("You have built no images. `carme-hub image build requirements.txt` builds one.")
    for each in found:
        until = f", removed on {time.strftime('%Y-%m-%d', time.gmtime(each['until']))} unless it is used"
        ready = each["state"] == READY
        text = (
            f"{each['name']}  {each['state']}  on top of {each['base']}{until if ready and each.get('until') else ''}"
        )
        print_text(text + (f": {each['problem']}" if each["problem"] else "") + "\n")
    return 0


def _discard(arguments: argparse.Namespace) -> int:
    hub = _hub(arguments)
    found = [each for each in hub.ask("GET", "").get("image_builds", []) if each["name"] == arguments.name]
    if not found:
        raise Refused(f"You have no image {arguments.name}. `carme-hub image mine` lists them.")
    for each in found:
        hub.ask("DELETE", f"/{uuid.UUID(str(each['id']))}")
    _remove_files([str(each["id"]) for each in found])
    say(f"{arguments.name} is removed.")
    return 0


def _remove_files(ids: Sequence[str]) -> None:
    """Remove what is left in this home of images that the hub has removed; the next build does it otherwise."""
    for each in ids:
        folder = Path.home() / ".carme/images" / str(uuid.UUID(each))
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)
