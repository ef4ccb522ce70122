"""Hardware and software probe: the GPUs CUDA would show and their order, the driver, and the installed libraries.

Everything is asked of the driver's management library (NVML), of package metadata and of the linker: no CUDA context is
made, and none of cuDF, CuPy or torch is imported, so a process that asks stays free to choose its devices and to fork.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

import pynvml
from packaging.utils import canonicalize_name
from packaging.version import Version

from gpupipe.config import BACKENDS
from gpupipe.errors import BackendMissing
from gpupipe.support.validation import check_choice


@dataclass(frozen=True, slots=True)
class Gpu:
    """GPU device as CUDA would list it, a whole GPU or a MIG instance; unreported bytes are 0."""

    name: str
    uuid: str
    memory_total: int
    memory_free: int
    compute_capability: tuple[int, int]


def visible_gpus(environ: Mapping[str, str], nvml: Any) -> tuple[tuple[Gpu, ...], str]:
    """List the devices CUDA_VISIBLE_DEVICES leaves visible, in CUDA's order, and why others are hidden, if any are.

    An invalid entry hides itself and all after it, UUIDs may be abbreviated, and a process sees one MIG instance at
    most. Source: CUDA C++ Programming Guide, CUDA environment variables; that a repeated entry hides everything is what
    the driver does. `nvml` is the initialised module `pynvml`.
    """
    slots = _list_slots(nvml, environ)
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    if not slots:
        return (), "the driver lists no GPU"
    if mask is not None:
        gpus, hidden = _apply_mask(mask, slots)
    else:
        gpus, hidden = [next(iter(names.values())) for names in slots if names], ""
        if len(gpus) < len(slots):
            missing = f"{len(slots) - len(gpus)} of {len(slots)} GPUs"
            hidden = f"{missing} do not answer, or are in MIG mode without an instance"
    instance = next((gpu for gpu in gpus if gpu.uuid.startswith("MIG-")), None)
    if instance is not None and len(gpus) > 1:
        return (instance,), "CUDA shows a process one MIG instance only"
    return tuple(gpus), hidden


def _apply_mask(mask: str, slots: Sequence[Mapping[str, Gpu]]) -> tuple[list[Gpu], str]:
    visible: list[Gpu] = []
    what = f"CUDA_VISIBLE_DEVICES={mask!r}"
    for entry in map(str.strip, mask.split(",")):
        matches = _match(entry, slots)
        if entry in ("", "-1"):
            return visible, "" if visible else f"{what} hides all GPUs"
        if len(matches) != 1:
            trouble = "more than one device is" if matches else "no device is"
            return visible, f"{what}: {trouble} called {entry!r}, which hides it and all after it"
        if matches[0] in visible:
            return [], f"{what} repeats {entry!r}, which hides all GPUs"
        visible += matches
    return visible, ""


def _match(entry: str, slots: Sequence[Mapping[str, Gpu]]) -> list[Gpu]:
    """Find the devices that an entry names: by index, UUID, or prefix of a GPU's UUID."""
    if digits := re.match(r"[+-]?\d+", entry):  # CUDA reads as many digits as there are: "1st" is 1
        return [gpu for at, names in enumerate(slots) if at == int(digits[0]) for gpu in [*names.values()][:1]]
    named = [(name, gpu) for names in slots for name, gpu in names.items()]
    return [gpu for name, gpu in named if name == entry or (entry.startswith("GPU-") and name.startswith(entry))]


def _list_slots(nvml: Any, environ: Mapping[str, str]) -> list[dict[str, Gpu]]:
    """List all GPUs in the order of CUDA's indices, each as the names that CUDA_VISIBLE_DEVICES can call it by.

    The first name is that of what CUDA shows; in MIG mode it is the first instance, and others have names, too. CUDA
    documents its default order only as fastest first; cores times clock is the estimate used here. It matters on
    machines with different GPUs, where CUDA_DEVICE_ORDER=PCI_BUS_ID, NVML's own order, settles it.
    """
    slots: list[tuple[int, dict[str, Gpu]]] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            slots.append(_name_devices(nvml, nvml.nvmlDeviceGetHandleByIndex(index)))
        except nvml.NVMLError:  # fallen off the bus: it keeps its place, or the others would be taken for it
            slots.append((0, {}))
    if environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        slots.sort(key=lambda slot: -slot[0])
    return [names for _, names in slots]


def _name_devices(nvml: Any, handle: Any) -> tuple[int, dict[str, Gpu]]:
    """Return a GPU's speed, and by name the GPU, or its instances in MIG mode; old names of instances included."""

    def ask(default: Any, function: Any, *args: Any) -> Any:
        try:
            return function(*args)
        except nvml.NVMLError:  # not every GPU answers every question
            return default

    def describe(handle: Any) -> Gpu:
        memory = ask(None, nvml.nvmlDeviceGetMemoryInfo, handle)
        total, free = (memory.total, memory.free) if memory else (0, 0)
        return Gpu(nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle), total, free, capability)

    capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
    gpu = describe(handle)
    cores = ask(0, nvml.nvmlDeviceGetNumGpuCores, handle)
    speed = cores * ask(0, nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM)
    if ask((0, 0), nvml.nvmlDeviceGetMigMode, handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
        return speed, {gpu.uuid: gpu}
    names: dict[str, Gpu] = {}
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        part = ask(None, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if part is not None:
            instance = describe(part)
            names.setdefault(gpu.uuid, instance)
            ids = f"{nvml.nvmlDeviceGetGpuInstanceId(part)}/{nvml.nvmlDeviceGetComputeInstanceId(part)}"
            names |= {instance.uuid: instance, f"MIG-{gpu.uuid}/{ids}": instance}
    return speed, names


LIBRARIES = (
    *("gpupipe", "numpy", "pandas", "pyarrow", "scikit_learn", "torch"),
    *("cudf", "cuml", "cupy", "rmm", "dask_cuda", "rapids_dask_dependency", "dask", "distributed"),
)
_SUFFIXES = ("", *(f"-{kind}" for major in range(11, 20) for kind in (f"cu{major}", f"cuda{major}x")))
RAPIDS = ("cudf", "cuml", "cupy", "rmm")  # cuDF and cuML install the other two
_OPTIONAL = {"cuml"}  # it fits k-means and PCA, and nothing else asks for it
RAPIDS_VERSION = "26.10"
CUPY_VERSION = "14.2"
"""The first CuPy that can be used: before it `bincount` refuses an empty array, and `repeat` an array of counts."""

LIBCUDA = (
    "the driver's own libcuda.so.1: in a container NVIDIA_DRIVER_CAPABILITIES=compute,utility and --gpus all; "
    "elsewhere the driver installed again with its compute libraries, and its folder known to ldconfig"
)
"""Remedy if the driver answers, but CUDA's library does not load."""


@dataclass(frozen=True, slots=True)
class Library:
    """Installed library, by its import name.

    More than one of its `distributions` have overwritten each other's files; `cuda` is the CUDA major it was built for,
    None if it needs none or it is unknown; `requires` are its requirements without extras.
    """

    name: str
    version: str
    distributions: tuple[str, ...]
    cuda: int | None = None
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Machine:
    """Result of `probe`: visible GPUs in CUDA's order, driver, newest CUDA it runs, and installed libraries by name.

    `hidden` is why there is no GPU, or fewer than were asked for; `no_libcuda` why CUDA's driver library does not load.
    """

    gpus: tuple[Gpu, ...]
    hidden: str
    driver: str | None
    cuda: tuple[int, int] | None
    libraries: Mapping[str, Library]
    no_libcuda: str = ""

    @property
    def major(self) -> int:
        """The CUDA major to install for: the newest the driver runs."""
        return 12 if self.cuda and self.cuda < (13, 0) else 13


@cache
def this_machine() -> Machine:
    """Probe this machine once per process."""
    return probe()


def probe(
    environ: Mapping[str, str] = os.environ,
    nvml: Any = pynvml,
    path: Sequence[str] | None = None,
    prefix: str = sys.prefix,
    load: Callable[[str], Any] = ctypes.CDLL,
) -> Machine:
    """Detect GPUs, driver, and libraries in `path` or `sys.path`, conda's in `prefix`; initialise no device."""
    libraries = _find_libraries(path, prefix)
    try:
        nvml.nvmlInit()
        gpus, hidden = visible_gpus(environ, nvml)
        driver = nvml.nvmlSystemGetDriverVersion()
        version = nvml.nvmlSystemGetCudaDriverVersion()
        nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        return Machine((), f"no NVIDIA driver answers ({error})", None, None, libraries)
    cuda, no_libcuda = (version // 1000, version % 1000 // 10), ""
    try:
        load("libcuda.so.1")
    except OSError as error:
        no_libcuda = str(error)
    return Machine(gpus, hidden, driver, cuda, libraries, no_libcuda)


def choose_backend(requested: str, machine: Machine) -> tuple[str, str]:
    """Choose the backend, `"cpu"` or `"gpu"`, and give the reason; `BackendMissing` where `"gpu"` cannot work."""
    check_choice("select", BACKENDS, backend=requested)
    if requested == "cpu":
        return "cpu", "asked for"
    obstacle, remedy = _obstacle(machine)
    if requested == "gpu":
        if obstacle:
            expected = "a visible NVIDIA GPU, RAPIDS, and torch built for CUDA"
            raise BackendMissing("backend 'gpu'", obstacle, expected=expected, remedy=remedy)
        return "gpu", "asked for"
    return ("cpu", obstacle) if obstacle else ("gpu", f"{machine.gpus[0].name} is visible and RAPIDS is installed")


def install_lines(machine: Machine) -> str:
    """Return the pip and conda commands that install the GPU backend, for the CUDA version of this machine's driver."""
    major = machine.major
    pip = f"pip install 'cudf-cu{major}=={RAPIDS_VERSION}.*' 'cuml-cu{major}=={RAPIDS_VERSION}.*'"
    conda = f"cudf={RAPIDS_VERSION} cuml={RAPIDS_VERSION} 'cupy>={CUPY_VERSION}' pytorch-gpu 'cuda-version={major}.*'"
    return f"{pip} 'cupy-cuda{major}x>={CUPY_VERSION}'   or   conda install -c rapidsai -c conda-forge {conda}"


def cupy_line(machine: Machine) -> str:
    """Return the command that installs a newer CuPy; empty if none is needed."""
    cupy = machine.libraries.get("cupy")
    if cupy is None or Version(cupy.version) >= Version(CUPY_VERSION):
        return ""
    conda = f"conda install -c conda-forge 'cupy>={CUPY_VERSION}'"
    return f"pip install 'cupy-cuda{cupy.cuda or machine.major}x>={CUPY_VERSION}'   or   {conda}"


def torch_line(major: int) -> str:
    """Return the command that installs a torch built for this CUDA major."""
    conda = f"conda install -c conda-forge pytorch-gpu 'cuda-version={major}.*'"
    where = "https://pytorch.org/get-started/locally"
    if major == 13:
        return f"pip install --force-reinstall torch   (PyPI's is for CUDA 13; others: {where})   or   {conda}"
    pip = f"pip install --force-reinstall torch --index-url INDEX   (PyTorch's of builds for CUDA {major}, see {where})"
    return f"{pip}   or   {conda}"


def _obstacle(machine: Machine) -> tuple[str, str]:
    """Return what keeps the GPU backend from working, and the remedy; empty if nothing does."""
    if not machine.gpus:
        return machine.hidden, f'backend="cpu" here; on a machine with a GPU: {install_lines(machine)}'
    if machine.no_libcuda:
        return f"CUDA's driver library does not load ({machine.no_libcuda})", LIBCUDA
    if missing := [name for name in RAPIDS if name not in {*machine.libraries, *_OPTIONAL}]:
        return f"{', '.join(missing)} not installed", install_lines(machine)
    if newer := cupy_line(machine):
        return f"CuPy {machine.libraries['cupy'].version} is older than {CUPY_VERSION}", newer
    torch = machine.libraries.get("torch")
    if torch is None or torch.cuda is None:
        problem = "torch not installed" if torch is None else f"torch {torch.version} is built without CUDA"
        return problem, torch_line(machine.major)
    for library in (*(machine.libraries[name] for name in RAPIDS if name in machine.libraries), torch):
        if machine.cuda and library.cuda and library.cuda > machine.cuda[0]:
            runs = f"the driver ({machine.driver}) runs CUDA {machine.cuda[0]}"
            remedy = f"a newer driver, or {install_lines(machine)}"
            return f"{library.name} is built for CUDA {library.cuda}, {runs}", remedy
    return "", ""


def _find_libraries(path: Sequence[str] | None, prefix: str) -> dict[str, Library]:
    """Find the installed ones of `LIBRARIES`; reads only their own metadata, however many packages there are."""
    folders = sys.path if path is None else list(path)
    record = next(Path(prefix, "conda-meta").glob("cuda-version-*.json"), None)  # conda's packages have no suffix
    conda_cuda = None if record is None else int(record.name.removeprefix("cuda-version-").partition(".")[0])
    installed = {}
    for name in LIBRARIES:
        copies: dict[str, Distribution] = {}
        for suffix in _SUFFIXES:
            for distribution in distributions(name=name + suffix, path=folders):
                normal = str(canonicalize_name(str(distribution.metadata["Name"])))
                copies.setdefault(normal, distribution)  # the first on the path is the one imported
        if copies:
            first_name, first = next(iter(copies.items()))
            suffixed = re.search(r"-(?:cu|cuda)(\d+)x?$", first_name)
            built_for = int(suffixed[1]) if suffixed else conda_cuda if name in RAPIDS else None
            version, cuda = _read_torch_build(first) if name == "torch" else (first.version, built_for)
            requires = tuple(requirement for requirement in first.requires or () if "extra ==" not in requirement)
            installed[name] = Library(name, version, tuple(sorted(copies)), cuda, requires)
    return installed


def _read_torch_build(distribution: Distribution) -> tuple[str, int | None]:
    """Read version and CUDA major from torch's version file as text: the metadata may lack the "+cu130"."""
    file = Path(str(distribution.locate_file("torch/version.py")))
    text = file.read_text() if file.exists() else ""
    stated = re.search(r"^__version__\s*=\s*['\"](.+?)['\"]", text, re.MULTILINE)
    version = stated[1] if stated else distribution.version
    cuda = re.search(r"^cuda\b.*=\s*['\"](\d+)", text, re.MULTILINE) or re.search(r"\+cu(\d\d)", version)
    return version, int(cuda[1]) if cuda else None
