"""What quota commands print, and what the readers make of it; what is no answer is an error and never 0."""

from __future__ import annotations

import pytest

from carme_hub.disk.readers import GROUP, PROJECT, READERS, USER, Question, grace, of_file_system
from carme_hub.domain.disk_use import DAY, Use

KIB, MIB, NOW = 1024, 1024**2, 1_795_000_000.0

#: `xfs_quota -x -c 'report -u -N -b -i' /a`, xfsprogs 4 to 6.
XFS = """\
root                0          0          0     00 [--------]          3          0          0     00 [--------]
zhangsan        15360      10240      15360     00  [6 days]          12         10         20     00 [-none-]
zhang               4          0          0     00 [--------]          1          0          0     00 [--------]
#2001            2048          0       4096     00 [--------]          1          0          0     00 [--------]
"""
#: `quota -v -w -p --show-mntpoint --hide-device -u alice`, quota-tools 4.
QUOTA = """\
Disk quotas for user alice (uid 1001):\x20
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
          /home  15360*  10240   20480 1795500000       7       0       0       0
 /data of teams      40       0       0       0       1       5      10       0
"""
#: `lfs quota -q -u alice /lustre`: Lustre 2.12 to 2.15; a long name has a line of its own.
LUSTRE = "        /lustre   25604*   25600   51200 6d23h59m       7       0       0       -\n"
LUSTRE_LONG = """\
/lustre/a-very-long-name-of-a-file-system
                   [20532]   10240   20480       -      34*      5      10 expired
"""
#: `mmlsquota -Y -u alice fs1`: Storage Scale 5; a user has a row for each fileset.
GPFS = """\
mmlsquota::HEADER:version:reserved:reserved:filesystemName:quotaType:id:name:blockUsage:blockQuota:blockLimit:\
blockInDoubt:blockGrace:filesUsage:filesQuota:filesLimit:filesInDoubt:filesGrace:remarks:quota:defQuota:fid:filesetname:
mmlsquota::0:1:::fs1:USR:1001:alice:512:0:0:0:none:12:0:0:0:none::on:off:0:root:
mmlsquota::0:1:::fs1:USR:1001:alice:25604:25600:51200:0:6 days:120:0:1000:0:none:e%3Aon:on:off:1:home:
"""
#: `zfs get -H -p -o property,value userused@alice,… tank/home`, OpenZFS 2.
ZFS = "userused@alice\t12599296\nuserquota@alice\t20971520\nuserobjused@alice\t31\nuserobjquota@alice\tnone\n"
ZFS_DATASET = "used\t31457280\nquota\t104857600\nrefquota\t12582912\nreferenced\t12054528\n"
#: `btrfs qgroup show -re --raw -f FOLDER`, btrfs-progs 6.2 with a limit and without, and 4.4.
BTRFS = """\
Qgroupid    Referenced    Exclusive  Max referenced  Max exclusive   Path\x20
--------    ----------    ---------  --------------  -------------   ----\x20
0/256         12599296     12599296        20971520           none   alice
"""
BTRFS_WITHOUT = BTRFS.replace("20971520", "    none")
BTRFS_OLD = """\
qgroupid         rfer         excl     max_rfer     max_excl\x20
--------         ----         ----     --------     --------\x20
0/257        12599296     12599296     20971520         none\x20
"""


def ask(reader: str, text: str, name: str, file_system: str = "/home", of: str = USER) -> Use:
    return READERS[reader].parse(text, Question("/shown", file_system, name, of), NOW)


def test_xfs_has_space_and_files_with_limits_and_grace() -> None:
    found = ask("xfs", XFS, "zhangsan")
    assert (found.used, found.soft, found.limit) == (15 * MIB, 10 * MIB, 15 * MIB)
    assert (found.files, found.soft_files, found.file_limit) == (12, 10, 20)
    assert found.grace_ends == NOW + 6 * DAY
    assert found.is_full
    assert ask("xfs", XFS, "root") == Use("/shown", 0, files=3)
    assert ask("xfs", XFS, "zhang").used == 4 * KIB  # and not the one whose name begins like that
    assert ask("xfs", XFS, "#2001").limit == 4 * MIB


def test_quota_of_ext4_and_nfs_gives_the_file_system_that_was_asked_for() -> None:
    found = ask("quota", QUOTA, "alice")
    assert (found.used, found.soft, found.limit, found.files, found.file_limit) == (
        15 * MIB,
        10 * MIB,
        20 * MIB,
        7,
        None,
    )
    assert found.grace_ends == 1_795_500_000
    other = ask("quota", QUOTA, "alice", "/data of teams")
    assert (other.used, other.soft_files, other.file_limit, other.grace_ends) == (40 * KIB, 5, 10, None)


def test_lustre_marks_and_long_names_are_understood() -> None:
    found = ask("lustre", LUSTRE, "alice", "/lustre")
    assert (found.used, found.soft, found.limit, found.files) == (25604 * KIB, 25600 * KIB, 51200 * KIB, 7)
    assert found.grace_ends == NOW + 6 * DAY + 23 * 3600 + 59 * 60
    long = ask("lustre", LUSTRE_LONG, "alice", "/lustre/a-very-long-name-of-a-file-system")
    assert (long.used, long.limit, long.files, long.file_limit, long.grace_ends) == (
        20532 * KIB,
        20480 * KIB,
        34,
        10,
        NOW,
    )


def test_gpfs_gives_the_fileset_that_is_fullest() -> None:
    found = ask("gpfs", GPFS, "alice", "fs1")
    assert (found.used, found.soft, found.limit) == (25604 * KIB, 25600 * KIB, 51200 * KIB)
    assert (found.files, found.file_limit, found.grace_ends) == (120, 1000, NOW + 6 * DAY)
    fileset = GPFS.replace(":USR:1001:alice:", ":FILESET:1:lab%3A1:")
    assert ask("gpfs", fileset, "lab:1", "fs1", PROJECT).limit == 51200 * KIB


def test_zfs_has_users_and_datasets() -> None:
    found = ask("zfs", ZFS, "alice", "tank/home")
    assert (found.used, found.limit, found.files, found.file_limit) == (12_599_296, 20 * MIB, 31, None)
    dataset = ask("zfs", ZFS_DATASET, "lab", "tank/project", PROJECT)
    assert (dataset.used, dataset.limit) == (12_054_528, 12 * MIB)  # its own limit is nearer than that with snapshots
    assert ask("zfs", ZFS_DATASET.replace("12582912", "0"), "lab", "tank", PROJECT).limit == 100 * MIB


def test_btrfs_has_the_limit_of_a_subvolume() -> None:
    for text in (BTRFS, BTRFS_OLD):
        found = ask("btrfs", text, "alice", of=PROJECT)
        assert (found.used, found.limit) == (12_599_296, 20 * MIB)
    assert ask("btrfs", BTRFS_WITHOUT, "alice", of=PROJECT).limit is None


@pytest.mark.parametrize("reader", sorted(READERS))
@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "Disk quotas for user bob (uid 1002): none\n",
        "xfs_quota: cannot setup path for mount /home: No such device or address\n",
        "Unexpected quotactl error: Operation not permitted\n/home - - - - - - - -\n",
        "userused@bob\t-\nused\t-\n",
        "/home x y z a b c d e\n",
        "mmlsquota::HEADER:version:name:\nmmlsquota::0:1:alice:\n",
    ],
)
def test_what_is_no_answer_is_never_zero(reader: str, text: str) -> None:
    with pytest.raises(ValueError):
        ask(reader, text, "alice")


@pytest.mark.parametrize("reader", sorted(READERS))
def test_a_command_is_a_list_of_words_with_the_name_as_one_of_them(reader: str) -> None:
    for of in READERS[reader].of:
        argv = list(READERS[reader].argv(Question("/home/a", "/home", "alice", of)))
        assert all(isinstance(word, str) and word for word in argv)
        assert "/home" in argv or "/home/a" in argv or "--hide-device" in argv or "/home/alice" in argv
    assert (USER in READERS[reader].of) == (GROUP in READERS[reader].of)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("-", None), ("none", None), ("[--------]", None), ("[-none-]", None), ("nonsense", None)),
        *(("6d23h59m", 6 * DAY + 86_340), ("[6 days]", 6 * DAY), ("23:12", 83_520), ("expired", 0), ("59m10s", 3550)),
        ("1w2d", 9 * DAY),
    ],
)
def test_grace_times_are_understood_in_every_spelling(text: str, seconds: float | None) -> None:
    assert grace(text, NOW) == (None if seconds is None else NOW + seconds)


@pytest.mark.parametrize("name", ["1001", "0x3e9", "0X3E9"])
def test_a_name_that_quota_reads_as_a_number_is_not_asked_for(name: str) -> None:
    with pytest.raises(ValueError, match="reads as a number"):
        READERS["quota"].argv(Question("/home", "/home", name))


def test_a_file_system_is_full_for_users_before_it_is_for_root() -> None:
    assert ask("disk", "100 20 10 4096\n", "alice") == of_file_system("/shown", (409_600, 81_920, 40_960))
    found = of_file_system("/home", (100, 20, 10))
    assert (found.used, found.limit, found.shared, found.percent) == (80, 90, True, 88)
