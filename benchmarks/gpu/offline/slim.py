"""A wheel with the machine code of one GPU architecture, and without what is only compiled against or tested.

A library for GPUs holds its kernels once per architecture, in containers with a header of their own, and each entry of
a container begins with its kind and architecture. What another architecture runs is overwritten with zeros, which
compress to nothing: no byte moves, so the library stays as its linker made it. A container without machine code for
the architecture stays whole: the driver or a linker makes such code of what it holds.

What travels is a tar of the wheel's files, compressed by xz in blocks that all cores share.
"""

from __future__ import annotations

import csv
import io
import lzma
import os
import re
import struct
import tarfile
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile
from typing import IO, NamedTuple

__all__ = ["slim", "slimmed"]

# Of NVIDIA's fat binaries: a container is this word, version 1, 16 bytes of header and the size of what follows.
CONTAINER = struct.pack("<IHH", 0xBA55ED50, 1, 16)
MACHINE_CODE = 2
UNUSED = re.compile(r"(^lib\w+|^rapids_logger|^nvidia/\w+)/include/|/(cmake|pkgconfig)/|\.(a|pyx)$|^[^.]*/tests/")
STANDARD_PLACE = re.compile(r"^[^/]+\.data/(platlib|purelib)/")
ELSEWHERE = re.compile(r"^[^/]+\.data/")
# Preset 6, the default, takes three times as long for a twentieth less.
BLOCK = 8 << 20
FILTERS = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 1}]


class Entry(NamedTuple):
    """Code in a container: what it is, for which architecture, and where it lies."""

    kind: int
    arch: int
    start: int
    stop: int


def slim(wheel: Path, out: Path, arch: int | None) -> None:
    """Write the wheel anew: without what is not used, for one architecture (all, where None), tightly packed."""
    draft = out.with_suffix(".draft")
    with TemporaryFile(dir=out.parent) as tar:
        write_tar(wheel, tar, arch)
        with draft.open("wb") as file:
            file.writelines(compress(tar))
    draft.replace(out)


def write_tar(wheel: Path, out: IO[bytes], arch: int | None) -> None:
    """Write the wheel's files and their RECORD, which is the last: a package that has it is whole."""
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    with zipfile.ZipFile(wheel) as source, tarfile.open(fileobj=out, mode="w") as tar:
        names = {info.filename: place_of(info.filename) for info in source.infolist()}
        (record_name,) = (name for name in names if re.fullmatch(r"[^/]+\.dist-info/RECORD", name))
        for name, place in names.items():
            if place is None or name == record_name:
                continue
            content = source.read(name)
            if arch is not None and content[:4] == b"\x7fELF":
                content = slimmed(content, arch)
            add_file(tar, place, content)
            digest = urlsafe_b64encode(sha256(content).digest()).rstrip(b"=").decode()
            rows.writerow([place, f"sha256={digest}", len(content)])
        rows.writerow([record_name, "", ""])
        add_file(tar, record_name, record.getvalue().encode())


def add_file(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def compress(file: IO[bytes]) -> Iterator[bytes]:
    """Compress a file in blocks, beside each other: compressing leaves the interpreter free."""
    file.flush()
    size, number = file.tell(), file.fileno()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        yield from pool.map(
            lambda at: lzma.compress(os.pread(number, BLOCK, at), lzma.FORMAT_XZ, filters=FILTERS),
            range(0, size, BLOCK),
        )


def place_of(name: str) -> str | None:
    """Where a wheel's file belongs among the packages; None where it stays behind."""
    if name.endswith("/") or UNUSED.search(name):
        return None
    name = STANDARD_PLACE.sub("", name)
    return None if ELSEWHERE.match(name) else str(PurePosixPath(name))


def slimmed(library: bytes, arch: int) -> bytes:
    """The library with zeros for the code of other architectures."""
    made = bytearray(library)
    for entries in containers(library):
        if any(entry.kind == MACHINE_CODE and entry.arch == arch for entry in entries):
            for entry in entries:
                if (entry.kind, entry.arch) != (MACHINE_CODE, arch):
                    made[entry.start : entry.stop] = bytes(entry.stop - entry.start)
    return bytes(made)


def containers(library: bytes) -> Iterator[list[Entry]]:
    """The entries of each container; what only looks like one is passed over."""
    at = library.find(CONTAINER)
    while at >= 0:
        (size,) = struct.unpack_from("<Q", library, at + 8)
        entries = entries_of(library, at + 16, at + 16 + size)
        if entries:
            yield entries
        at = library.find(CONTAINER, entries[-1].stop if entries else at + 1)


def entries_of(library: bytes, at: int, stop: int) -> list[Entry]:
    """What fills a container from its header to its end, to the byte; nothing where it does not."""
    found = []
    while at + 64 <= min(stop, len(library)):
        kind, _, header, size = struct.unpack_from("<HHIQ", library, at)
        (arch,) = struct.unpack_from("<I", library, at + 28)
        if header < 32:
            return []
        found.append(Entry(kind, arch, at + header, at + header + size))
        at = found[-1].stop
    return found if at == stop <= len(library) else []
