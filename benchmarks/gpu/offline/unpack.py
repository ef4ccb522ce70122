"""Make an environment of the parts that lie beside this file, on a GPU host without a network.

    python3.12 unpack.py ENVIRONMENT [--so-far]

Needs Python's standard library alone. The environment has what the parts bring and, behind it, the packages of the
Python that runs this: its torch, Triton, CuPy. It may be run after each part that arrives, with `--so-far` to install
what is whole by then, and again after it was ended: what is whole stays, the rest is done.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
import tarfile
import venv
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
# Lines that the environment's Python runs as it starts. torch would load its own nvJitLink, which is older and has the
# same name, and libcuvs would not find what it asks for; the host's packages stand behind those of the environment.
LINKER = "import ctypes, os; os.path.exists({path!r}) and ctypes.CDLL({path!r})\n"
BEHIND = "import site; site.addsitedir({path!r})\n"
NEWER = "nvidia/cu13/lib/libnvJitLink.so.13"


class NotYet(SystemExit):
    """What stands in the way, and what to do; ends the program with status 1."""


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--so-far"]
    if len(words) != 1 or words[0].startswith("-"):
        raise NotYet(__doc__)
    environment = Path(words[0]).absolute()
    manifest = json.loads((HERE / "manifest.json").read_text())
    check_host(manifest["host"])
    parts, missing = whole_parts(manifest["parts"])
    if missing:
        here = (
            f"{len(parts)} of {len(manifest['parts'])} parts are here and whole. Bring {', '.join(missing)} into {HERE}"
        )
        if "--so-far" not in sys.argv:
            raise NotYet(f"{here} and run this again; with --so-far what has arrived is installed.")
        print(f"{here}, too.")
    packages = made_by_us(environment, sha256((HERE / "manifest.json").read_bytes()).hexdigest())
    arrived = contents(manifest, parts)
    count = install(arrived, packages, environment / "whole")
    link(packages, manifest["host"]["libraries"])
    print(f"{count} packages installed, {len(arrived) - count} were there. Now, in the checkout:")
    for target in ("smoke-gpu", "test-gpu", "bench-gpu"):
        print(f"    make {target} PYTHON={environment}/bin/python")


def whole_parts(wanted: list[dict[str, Any]]) -> tuple[dict[str, bytes], list[str]]:
    """The parts that are here, each checked, and the names of the others."""
    read = {part["name"]: (HERE / part["name"]).read_bytes() for part in wanted if (HERE / part["name"]).is_file()}
    damaged = [
        f"{part['name']} is damaged: it has {len(read[part['name']]):,} bytes of {part['bytes']:,}, "
        f"and not the sha256 of the manifest. Bring {part['name']} again; the other parts may stay."
        for part in wanted
        if part["name"] in read and sha256(read[part["name"]]).hexdigest() != part["sha256"]
    ]
    if damaged:
        raise NotYet("\n".join(damaged))
    return read, [part["name"] for part in wanted if part["name"] not in read]


def contents(manifest: dict[str, Any], parts: dict[str, bytes]) -> dict[str, bytes]:
    """The packages whose bytes are all here, by name and in their order."""
    row = b"".join(parts.get(part["name"], bytes(part["bytes"])) for part in manifest["parts"])
    start, arrived = 0, {}
    for wheel in manifest["wheels"]:
        if parts.keys() >= set(wheel["parts"]):
            arrived[wheel["name"]] = row[start : start + wheel["bytes"]]
        start += wheel["bytes"]
    return arrived


def check_host(asked: dict[str, Any]) -> None:
    """Whether this Python is the one that the parts were made for, and has what they do not bring."""
    python = asked["python"]
    if python != VERSION:
        raise NotYet(f"The parts are for Python {python}, this is {VERSION}: run this with python{python}.")
    missing = ", ".join(name for name in asked["packages"] if not has(name))
    if missing:
        raise NotYet(f"{sys.executable} has no {missing}, and the parts bring none: run this with a Python that has.")
    missing = " and no ".join(not_compiling())
    if missing:
        print(
            f"WARNING: there is no {missing} here, and Triton compiles with both what starts its kernels. Without them "
            f"features are written column by column, more slowly, and torch.compile fails. Install gcc and the "
            f"headers of Python {VERSION} (python{VERSION}-dev), or name a compiler in CC; the environment may stay.",
            flush=True,
        )


def not_compiling() -> list[str]:
    """What is missing of what Triton looks for: `$CC`, gcc or clang (not cc), and the header of this Python."""
    compilers = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # as Debian names it, and Triton not
    header = Path(sysconfig.get_path("include", scheme)) / "Python.h"
    missing = [] if any(map(shutil.which, compilers)) else [f"C compiler ({' or '.join(compilers)})"]
    return missing if header.is_file() else [*missing, str(header)]


def has(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def made_by_us(environment: Path, origin: str) -> Path:
    """The folder of the environment's packages; the environment is made where it is not there."""
    packages = environment / "lib" / f"python{VERSION}" / "site-packages"
    mark = environment / "made-of"
    if environment.exists() and not (mark.exists() and mark.read_text() == origin):
        raise NotYet(f"{environment} is there and not made of these parts: remove it, or name another.")
    environment.mkdir(parents=True, exist_ok=True)
    mark.write_text(origin)
    venv.create(environment, symlinks=True)
    behind = [folder for folder in sys.path if folder.endswith(("site-packages", "dist-packages"))]
    lines = [LINKER.format(path=str(packages / NEWER)), *(BEHIND.format(path=folder) for folder in behind)]
    (packages / "first.pth").write_text("".join(lines))
    return packages


def install(arrived: dict[str, bytes], packages: Path, whole: Path) -> int:
    """Unpack each package that is not there whole, beside each other; how many those were."""
    whole.mkdir(exist_ok=True)
    wanted = [name for name in arrived if not (whole / name).exists()]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: unpack(arrived[name], packages, whole / name), wanted))
    return len(wanted)


def unpack(content: bytes, packages: Path, mark: Path) -> None:
    """One package; the mark tells that all of it is there."""
    with tarfile.open(fileobj=BytesIO(content), mode="r:xz") as archive:
        for info in archive:
            path = packages / info.name
            # `extract` fails where others make the folder, too, and writes to where a link leads: the host's library.
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink():
                path.unlink()
            archive.extract(info, packages, filter="data")
    mark.touch()


def link(packages: Path, libraries: list[str]) -> None:
    """Put the host's CUDA libraries where those of the wheels look for them: beside themselves."""
    for place in ("nvidia/cu13/lib", "nvidia/nccl/lib"):
        (packages / place).mkdir(parents=True, exist_ok=True)
        for folder in map(Path, sys.path):
            for library in sorted((folder / place).glob("*.so*")):
                if not (packages / place / library.name).exists():
                    (packages / place / library.name).symlink_to(library.resolve())
    missing = [name for name in libraries if not list(packages.glob(f"nvidia/*/lib/{name}"))]
    if missing:
        raise NotYet(f"No {', '.join(missing)} among the host's packages: RAPIDS needs what torch for CUDA 13 brings.")


if __name__ == "__main__":
    main()
