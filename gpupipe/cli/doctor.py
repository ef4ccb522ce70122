"""Installation check `gpupipe doctor`: hardware, libraries, conflicts between them, and remedies."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gpupipe.backend.device import probe
from gpupipe.backend.device.probe import RAPIDS, Library, Machine
from gpupipe.config import settings
from gpupipe.errors import BackendMissing
from gpupipe.support.text import html_table

BASE = ("numpy", "pandas", "pyarrow", "scikit_learn", "torch")
OLDEST_DRIVER = {13: 580, 12: 525}
"""The first driver branch for each CUDA major. Source: NVIDIA, CUDA Compatibility, minor version compatibility."""
OLDEST_GPU = {13: (7, 5), 12: (7, 0)}
"""The first compute capability RAPIDS runs on: Volta; with CUDA 13, which no longer builds for Volta, Turing."""


class Verdict(StrEnum):
    """Severity of a finding: fine, worth knowing, or blocking what was requested."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Row:
    """One finding; `remedy` is empty where there is nothing to do."""

    name: str
    value: str
    verdict: Verdict = Verdict.OK
    remedy: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """Report of findings; prints as a text table and displays as one in a notebook."""

    rows: tuple[Row, ...]

    @property
    def exit_code(self) -> int:
        """1 where something asked for will not work, else 0; a machine without a GPU is fine."""
        return int(any(row.verdict is Verdict.FAIL for row in self.rows))

    def __repr__(self) -> str:
        width = max((len(row.name) for row in self.rows), default=0)
        lines = []
        for row in self.rows:
            lines += [f"{row.verdict:4}  {row.name:{width}}  {row.value}"]
            lines += [f"{'':{width + 8}}-> {row.remedy}"] if row.remedy else []
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [[row.verdict, row.name, row.value, row.remedy] for row in self.rows]
        return html_table([["", "name", "found", "what to do"], *rows])


def diagnose(machine: Machine, requested: str | None = None) -> Report:
    """Assess the machine that `probe` described, for the requested backend, by default the one in force."""
    python = Row("Python", platform.python_version(), *_unless(sys.version_info >= (3, 11), "Python 3.11 or newer"))
    rows = [python, *_hardware(machine), *_libraries(machine), *_cuda_builds(machine)]
    try:
        backend, reason = probe.choose_backend(settings().backend if requested is None else requested, machine)
        rows.append(Row("backend", f"{backend}: {reason}"))
    except BackendMissing as error:
        rows.append(Row("backend", f"gpu cannot work: {error.problem}", Verdict.FAIL, error.remedy))
    return Report(tuple(rows))


def _unless(good: bool, remedy: str, verdict: Verdict = Verdict.FAIL) -> tuple[Verdict, str]:
    return (Verdict.OK, "") if good else (verdict, remedy)


def _hardware(machine: Machine) -> Iterator[Row]:
    """Report the driver, and each visible GPU with its memory."""
    if machine.driver is None or machine.cuda is None:
        yield Row("GPU", f"none: {machine.hidden}")
        return
    yield Row("driver", f"{machine.driver}, runs CUDA up to {machine.cuda[0]}.{machine.cuda[1]}")
    if machine.no_libcuda:
        yield Row("libcuda", f"does not load: {machine.no_libcuda}", Verdict.FAIL, probe.LIBCUDA)
    if machine.hidden:
        remedy = "CUDA_VISIBLE_DEVICES lists indices or UUIDs of `nvidia-smi -L`"
        yield Row("visible GPUs", machine.hidden, Verdict.WARN, remedy)
    builds = [library.cuda for library in machine.libraries.values() if library.name in RAPIDS and library.cuda]
    oldest = OLDEST_GPU.get(max(builds, default=12), (7, 0))
    for index, gpu in enumerate(machine.gpus):
        major, minor = gpu.compute_capability
        free, total = (f"{size / 2**30:.1f}" for size in (gpu.memory_free, gpu.memory_total))
        memory = f"{free} of {total} GiB free" if gpu.memory_total else "shared memory"
        holders = "`nvidia-smi` shows which process holds the memory"
        advice = _unless(gpu.memory_free * 2 >= gpu.memory_total, holders, Verdict.WARN)
        if gpu.compute_capability < oldest:
            advice = Verdict.FAIL, f"a GPU of compute capability {oldest[0]}.{oldest[1]} or newer; backend='cpu' works"
        yield Row(f"GPU {index}", f"{gpu.name}, compute capability {major}.{minor}, {memory}", *advice)


def _libraries(machine: Machine) -> Iterator[Row]:
    """Report each library's version, and whether the versions of its dependencies fit."""
    for name in BASE:
        if name not in machine.libraries:
            yield Row(_public(name), "not installed", Verdict.FAIL, f"pip install {_public(name)}")
    for library in machine.libraries.values():
        name, packages, clashes = _public(library.name), library.distributions, list(_clashes(library, machine))
        if len(packages) > 1:
            remedy = f"pip uninstall {' '.join(packages)}   then install the one you need"
            versions = f"{library.version}, installed as {' and '.join(packages)}, which overwrite each other"
            yield Row(name, versions, Verdict.FAIL, remedy)
        elif clashes:
            requirements = ", ".join(f"{requirement} (found {version})" for requirement, version in clashes)
            remedy = f"pip install {' '.join(repr(str(requirement)) for requirement, _ in clashes)}"
            yield Row(name, f"{library.version}, which needs {requirements}", Verdict.FAIL, remedy)
        elif library.name == "cupy" and (newer := probe.cupy_line(machine)):
            yield Row("cupy", f"{library.version}, older than {probe.CUPY_VERSION}", Verdict.FAIL, newer)
        else:
            yield Row(name, library.version)
    missing = [name for name in RAPIDS if name not in machine.libraries]
    if missing:
        advice = _unless(not machine.gpus, probe.install_lines(machine), Verdict.WARN)
        lost = "k-means and PCA(solver='library') are" if missing == ["cuml"] else "the GPU backend is"
        yield Row("RAPIDS", f"{', '.join(missing)} not installed: {lost} not there", *advice)


def _clashes(library: Library, machine: Machine) -> Iterator[tuple[Requirement, str]]:
    """Yield the requirements of `library` that another installed library's version does not satisfy."""
    for text in library.requires:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        name = re.sub(r"-(cu|cuda)\d+x?$", "", canonicalize_name(requirement.name)).replace("-", "_")
        other = machine.libraries.get(name)
        if other is not None and not requirement.specifier.contains(other.version, prereleases=True):
            requirement.extras, requirement.marker = set(), None
            yield requirement, other.version


def _cuda_builds(machine: Machine) -> Iterator[Row]:
    """Check that driver, RAPIDS and torch have one CUDA major version; two runtimes cannot share memory."""
    builds = {name: machine.libraries[name].cuda for name in RAPIDS if name in machine.libraries}
    majors = sorted({major for major in builds.values() if major})
    torch = machine.libraries.get("torch")
    if len(majors) > 1:
        builds_text = ", ".join(f"{_public(name)} for CUDA {major}" for name, major in builds.items() if major)
        yield Row("CUDA of RAPIDS", builds_text, Verdict.FAIL, f"one of them for all: {probe.install_lines(machine)}")
    elif majors and machine.cuda and majors[0] > machine.cuda[0]:
        needed = OLDEST_DRIVER.get(majors[0], 0)
        remedy = f"a driver {needed} or newer, or RAPIDS for CUDA {machine.cuda[0]}: {probe.install_lines(machine)}"
        yield Row("CUDA of RAPIDS", f"{majors[0]}, newer than the driver's {machine.cuda[0]}", Verdict.FAIL, remedy)
    if torch is None or not majors:
        return
    major = min(majors[0], machine.cuda[0]) if machine.cuda else majors[0]
    if torch.cuda != major:
        why = f"newer than the driver's {major}" if torch.cuda == majors[0] else f"beside RAPIDS for {majors[0]}"
        builds_text, verdict = f"{torch.cuda or 'none'}, {why}", Verdict.FAIL if machine.gpus else Verdict.WARN
        yield Row("CUDA of torch", builds_text, verdict, probe.torch_line(major))


def _public(name: str) -> str:
    """Return a library's usual spelling."""
    return name.replace("_", "-")
