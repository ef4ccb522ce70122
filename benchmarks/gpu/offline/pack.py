"""Pack what a GPU host without a network lacks into parts that are small enough to be carried there one by one.

    python benchmarks/gpu/offline/pack.py [FOLDER] [--arch 90] [--mib 50]

Downloads the wheels of `wheels.txt`, keeps the machine code of one GPU architecture in them (`--arch all` keeps all),
and cuts their row into parts. FOLDER then has the parts, `manifest.json` and `unpack.py`, which is all that travels.
What a run that was ended had done, the next does not do again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from slim import slim

__all__ = ["cut", "download", "slim_all"]

HERE = Path(__file__).resolve().parent
WHEELS = HERE / "wheels.txt"
GLIBC = ["2_28", "2_27", "2_26", "2_24", "2_17", "2_12"]  # of the host, and what runs there, too
# What the host has to have, with all that torch and CuPy for CUDA 13 bring; `unpack.py` looks for it.
HOST: dict[str, Any] = {
    "python": "3.12",
    "packages": ["torch", "triton", "cupy-cuda13x", "pyarrow", "scikit-learn", "scipy", "pytest", "pytest-xdist"],
    "libraries": [
        *("libcublas.so.13", "libcublasLt.so.13", "libcufft.so.12", "libcurand.so.10", "libcusolver.so.12"),
        *("libcusparse.so.12", "libnvrtc.so.13", "libnccl.so.2"),
    ],
}
MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/offline"))
    parser.add_argument("--arch", default="90", help="compute capability without its dot, or all")
    parser.add_argument("--mib", type=int, default=50, help="of a part, at most")
    given = parser.parse_args()
    work, arch = given.folder / "work", None if given.arch == "all" else int(given.arch)
    started = time.perf_counter()
    wheels = download(work / "wheels")
    print(f"{minutes(started)}: {len(wheels)} wheels, {mib(wheels)} MiB; now for architecture {given.arch}", flush=True)
    small = slim_all(wheels, work / f"arch-{given.arch}", arch)
    parts = cut(small, given.folder, given.mib * MIB, HOST)
    print(f"{minutes(started)}: {len(parts)} parts, {mib(parts)} MiB in {given.folder}, manifest.json and unpack.py")


def download(folder: Path) -> list[Path]:
    """The wheels of the list in its order, those that are there already as they are."""
    lines = (line.strip() for line in WHEELS.read_text().splitlines())
    pins = {line: "-".join(line.replace("-", "_").lower().split("==")) for line in lines if line and line[0] != "#"}
    missing = [pin for pin, name in pins.items() if name not in downloaded(folder)]
    platforms = [f"--platform=manylinux_{version}_x86_64" for version in GLIBC]
    platforms += ["--platform=manylinux2014_x86_64", f"--python-version={HOST['python']}", "--implementation=cp"]
    call = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", *platforms]
    if missing:
        subprocess.run([*call, "--quiet", "--progress-bar=off", "--dest", folder, *missing], check=True)
    wheels = downloaded(folder)
    return [wheels[name] for name in pins.values()]


def downloaded(folder: Path) -> dict[str, Path]:
    """The wheels of a folder by name and version."""
    return {"-".join(path.name.split("-")[:2]).lower(): path for path in folder.glob("*.whl")}


def slim_all(wheels: Iterable[Path], folder: Path, arch: int | None) -> list[Path]:
    """Each wheel made small, one after the other: all cores work on each."""
    folder.mkdir(parents=True, exist_ok=True)
    packed = {wheel: folder / f"{wheel.stem}.tar.xz" for wheel in wheels}
    for wheel, out in packed.items():
        if not out.exists():
            slim(wheel, out, arch)
    return list(packed.values())


def cut(wheels: list[Path], folder: Path, limit: int, host: dict[str, Any]) -> list[Path]:
    """Write the wheels one after the other into parts of so many bytes, and what `unpack.py` needs to know."""
    for old in [folder / "manifest.json", *folder.glob("part-*")]:
        old.unlink(missing_ok=True)
    parts = []
    for number, content in enumerate(pieces(wheels, limit)):
        parts.append(folder / f"part-{number:02}")
        parts[-1].write_bytes(content)
    told = {
        "host": host,
        "parts": [described(part) for part in parts],
        "wheels": [
            {
                "name": wheel.name,
                "bytes": stop - start,
                "parts": [part.name for part in parts[start // limit : -(-stop // limit)]],
            }
            for wheel, start, stop in bounds(wheels)
        ],
    }
    shutil.copy(HERE / "unpack.py", folder)
    (folder / "manifest.json").write_text(json.dumps(told, indent=1) + "\n")
    return parts


def bounds(wheels: Iterable[Path]) -> Iterator[tuple[Path, int, int]]:
    """Each wheel, where it begins in their row and where it ends."""
    start = 0
    for wheel in wheels:
        stop = start + wheel.stat().st_size
        yield wheel, start, stop
        start = stop


def pieces(wheels: Iterable[Path], limit: int) -> Iterator[bytes]:
    """The bytes of all wheels, so many at a time."""
    held = b""
    for wheel in wheels:
        held += wheel.read_bytes()
        while len(held) >= limit:
            yield held[:limit]
            held = held[limit:]
    if held:
        yield held


def described(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"name": path.name, "bytes": len(content), "sha256": sha256(content).hexdigest()}


def minutes(started: float) -> str:
    return f"{(time.perf_counter() - started) / 60:.1f} minutes"


def mib(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths) // MIB


if __name__ == "__main__":
    main()
