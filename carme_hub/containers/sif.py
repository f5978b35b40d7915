"""Find the squashfs inside a SIF file (Singularity Image Format, version 1), without running anything of it.

The layout is that of github.com/apptainer/sif/v2, pkg/sif: a header of 128 bytes and a table of descriptors, packed and
little-endian. A SIF begins with 32 bytes for an interpreter.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from carme_hub.errors import ContainerError

#: launch, magic, version, arch, uuid, created, modified, free and total descriptors, offset and size of the table, data
_HEADER = struct.Struct("<32s10s3s3s16s8q")
#: type, used, id, group, link, offset, size, size with padding, created, modified, uid, gid, name, extra
_DESCRIPTOR = struct.Struct("<i?III7q128s384s")
_PARTITION = struct.Struct("<ii3s")
_MAGIC = b"SIF_MAGIC\0"
_DATA_PARTITION, _SQUASHFS, _PRIMARY_SYSTEM = 0x4004, 1, 2
_MAX_DESCRIPTORS = 1024


@dataclass(frozen=True, slots=True)
class Partition:
    """A part of a file, in bytes."""

    offset: int
    size: int


def find_squashfs(file: Path) -> Partition:
    """Return the partition with the system.

    Raises:
        ContainerError: the file is no SIF, or its system is not a squashfs file system that is not encrypted.
    """
    length = file.stat().st_size
    with file.open("rb") as opened:
        head = opened.read(_HEADER.size)
        if len(head) < _HEADER.size or not (fields := _HEADER.unpack(head))[1] == _MAGIC:
            raise ContainerError(f"{file} is not a SIF file")
        total, table = fields[8], fields[9]
        if not 0 < total <= _MAX_DESCRIPTORS or not 0 < table < length:
            raise ContainerError(f"{file} is damaged: its table of contents is not there")
        opened.seek(table)
        content = opened.read(total * _DESCRIPTOR.size)
    for at in range(len(content) // _DESCRIPTOR.size):
        entry = _DESCRIPTOR.unpack_from(content, at * _DESCRIPTOR.size)
        kind, used, offset, size, extra = entry[0], entry[1], entry[5], entry[6], entry[13]
        if not used or kind != _DATA_PARTITION:
            continue
        system, part, _ = _PARTITION.unpack_from(extra)
        if part != _PRIMARY_SYSTEM:
            continue
        if system != _SQUASHFS:
            raise ContainerError(f"the system in {file} is not squashfs (perhaps encrypted), and cannot be unpacked")
        if offset <= 0 or size <= 0 or offset + size > length:
            raise ContainerError(f"{file} is damaged: its system ends behind the end of the file")
        return Partition(offset, size)
    raise ContainerError(f"{file} contains no system")
