"""Whether the commands that say how full users' disks are (``CarmeQuotas.disk_places``) are on this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from traitlets import TraitError
from traitlets.config import Config

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.disk.places import Place, places_of
from carme_hub.disk.readers import READERS
from carme_hub.errors import ConfigError

from .findings import Finding, unsafe

SETTING = "CarmeQuotas.disk_places"
#: Of commands whose packages have other names, or come from the file system's maker.
PACKAGES = {
    "xfs_quota": "install xfsprogs",
    "quota": "install quota",
    "zfs": "install zfsutils-linux (zfs)",
    "btrfs": "install btrfs-progs",
    "lfs": "install Lustre's client",
    "mmlsquota": "install IBM Storage Scale's client, and have /usr/lpp/mmfs/bin in the PATH of the hub's unit",
}
#: Where sudo looks beside PATH, and where these commands mostly are.
SBIN = "/usr/sbin:/sbin"
_ELSEWHERE = "; or ask another machine: prefix = ['ssh', 'fileserver']"


def check(config: Config) -> Iterator[Finding]:
    """Yield the commands that are missing; without them the page says "not known"."""
    try:
        places = places_of(CarmeQuotas(config=config).disk_places)
    except (TraitError, ConfigError) as error:
        yield unsafe(SETTING, "", str(error), "correct the entry that the message names")
        return
    for place in places:
        for program in _programs(place):
            if shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SBIN}") is None:
                mend = PACKAGES.get(program, f"install {program}") + _ELSEWHERE * (program in PACKAGES)
                why = f"the program {program} is not on this machine, so nobody learns how full {place.path} is"
                yield unsafe(SETTING, place.path, why, mend)
                break


def _programs(place: Place) -> Iterator[str]:
    """Yield the programs that this machine has to have: after ``ssh`` another has the rest."""
    if place.prefix:
        yield place.prefix[0]
    if not place.prefix or place.prefix[0].rpartition("/")[2] == "sudo":
        (question, *_) = place.questions("user", ["account"], lambda _: "/home/user")
        yield READERS[place.reader].argv(question)[0]
