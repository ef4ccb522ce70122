"""What is found installed, and which backend follows from it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.metadata import distributions, version
from pathlib import Path

import pytest

from gpupipe.backend.device.probe import Gpu, Library, Machine, choose_backend, probe
from gpupipe.errors import BackendMissing, BadConfig
from tests.backend.fake_nvml import FakeGpu, FakeNvml
from tests.raising import raises

GPU = Gpu("NVIDIA H200", "GPU-1", 140 << 30, 139 << 30, (9, 0))
RAPIDS_13 = {name: Library(name, "26.10.0", (f"{name}-cu13",), 13) for name in ("cudf", "cuml", "rmm")}
RAPIDS_13["cupy"] = Library("cupy", "14.2.0", ("cupy-cuda13x",), 13)
TORCH_13 = {"torch": Library("torch", "2.13.0+cu130", ("torch",), 13)}


def install(folder: Path, name: str, version: str, *requires: str, module: str = "", text: str = "") -> None:
    """Write the metadata of an installed package, and one file of it."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    if module:
        (folder / module).parent.mkdir(exist_ok=True)
        (folder / module).write_text(text)


def found(folder: Path, prefix: str = "/nowhere") -> dict[str, Library]:
    return dict(probe({}, FakeNvml(driver=None), [str(folder)], prefix).libraries)


def machine(libraries: dict[str, Library], *gpus: Gpu, cuda: tuple[int, int] = (13, 0)) -> Machine:
    return Machine(gpus, "" if gpus else "no NVIDIA driver answers", "580.82.07", cuda, libraries)


def test_libraries_are_known_with_and_without_suffix(tmp_path: Path) -> None:
    install(tmp_path, "cudf-cu13", "26.10.2", "pandas<3.1.0,>=3.0.0", 'pytest; extra == "test"')
    install(tmp_path, "cupy-cuda12x", "14.2.0")
    install(tmp_path, "rmm", "26.10.0")
    install(tmp_path, "scikit_learn", "1.9.1")
    install(tmp_path, "unrelated", "1.0")
    libraries = found(tmp_path)
    assert sorted(libraries) == ["cudf", "cupy", "rmm", "scikit_learn"]
    assert libraries["cudf"] == Library("cudf", "26.10.2", ("cudf-cu13",), 13, ("pandas<3.1.0,>=3.0.0",))
    assert (libraries["cupy"].cuda, libraries["rmm"].cuda) == (12, None)


def test_conda_tells_the_cuda_of_packages_without_suffix(tmp_path: Path) -> None:
    install(tmp_path, "cudf", "26.10.2")
    install(tmp_path, "pandas", "3.0.6")
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta" / "cuda-version-12.9-h4f385c5_3.json").write_text("{}")
    libraries = found(tmp_path, prefix=str(tmp_path))
    assert (libraries["cudf"].cuda, libraries["pandas"].cuda) == (12, None)


def test_two_builds_of_one_library_are_both_named(tmp_path: Path) -> None:
    install(tmp_path, "cupy-cuda12x", "14.2.0")
    install(tmp_path, "cupy-cuda13x", "14.2.0")
    assert found(tmp_path)["cupy"].distributions == ("cupy-cuda12x", "cupy-cuda13x")


def test_only_the_metadata_of_what_is_looked_for_is_read(tmp_path: Path) -> None:
    for name in ("cudf-cu13", "torch", "gpupipe"):
        install(tmp_path, name, "26.10.2")
    install(tmp_path, "unrelated", "1.0")
    (tmp_path / "unrelated-1.0.dist-info" / "METADATA").write_bytes(b"\xff")
    with pytest.raises(UnicodeDecodeError):
        print([item.metadata["Name"] for item in distributions(path=[str(tmp_path)])])
    assert sorted(found(tmp_path)) == ["cudf", "gpupipe", "torch"]


@pytest.mark.slow
def test_this_machine_is_looked_at_once() -> None:
    code = (
        "import gpupipe.backend.device.probe as p; calls = []; original = p.probe; "
        "p.probe = lambda *a: calls.append(1) or original(*a); import gpupipe as gp, pandas as pd; "
        "from gpupipe.backend import select; select('auto'); select('cpu'); "
        "gp.from_frame(pd.DataFrame({'x': [1.0]})); print(len(calls))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


@pytest.mark.parametrize(
    ("metadata", "file", "expected"),
    [
        ("2.13.0", "__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\n", ("2.13.0+cu130", 13)),
        ("2.13.0+cpu", "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", ("2.13.0+cpu", None)),
        ("2.11.0", "__version__ = '2.11.0'\ncuda: Optional[str] = '12.9'\n", ("2.11.0", 12)),  # conda
        ("2.12.0+cu126", "", ("2.12.0+cu126", 12)),
        ("2.12.0", "", ("2.12.0", None)),
    ],
)
def test_torch_tells_its_cuda(tmp_path: Path, metadata: str, file: str, expected: tuple[str, int | None]) -> None:
    install(tmp_path, "torch", metadata, module="torch/version.py" if file else "", text=file)
    torch = found(tmp_path)["torch"]
    assert (torch.version, torch.cuda) == expected


def test_this_interpreters_libraries_have_their_real_versions() -> None:
    libraries = probe({}).libraries
    assert libraries["pandas"].version == version("pandas")
    assert libraries["scikit_learn"].version == version("scikit-learn")


def test_driver_and_gpus_come_from_nvml_which_is_closed_again(tmp_path: Path) -> None:
    nvml = FakeNvml([FakeGpu("GPU-1", name="NVIDIA H200")], cuda=12090)
    seen = probe({}, nvml, [str(tmp_path)])
    assert (seen.driver, seen.cuda, seen.hidden) == ("580.82.07", (12, 9), "")
    assert [gpu.name for gpu in seen.gpus] == ["NVIDIA H200"]
    assert nvml.sessions == 0


def test_without_a_driver_there_is_no_gpu_and_a_reason(tmp_path: Path) -> None:
    seen = probe({}, FakeNvml(driver=None), [str(tmp_path)])
    assert seen == Machine((), "no NVIDIA driver answers (NVML Shared Library Not Found)", None, None, {})


def test_a_driver_without_its_cuda_library_is_seen(tmp_path: Path) -> None:
    asked: list[str] = []

    def missing(name: str) -> None:
        asked.append(name)
        raise OSError(f"{name}: cannot open shared object file")

    nvml = FakeNvml([FakeGpu("GPU-1")])
    seen = probe({}, nvml, [str(tmp_path)], load=missing)
    assert (seen.no_libcuda, asked) == ("libcuda.so.1: cannot open shared object file", ["libcuda.so.1"])
    assert probe({}, nvml, [str(tmp_path)], load=asked.append).no_libcuda == ""
    assert probe({}, FakeNvml(driver=None), [str(tmp_path)], load=missing).no_libcuda == ""  # nothing to load


@pytest.mark.slow
def test_probing_imports_none_of_what_it_looks_for() -> None:
    code = (
        "import sys; from gpupipe.backend.device.probe import probe; probe(); "
        "print([name for name in ('cudf', 'cuml', 'cupy', 'rmm', 'torch', 'sklearn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_auto_takes_the_gpu_where_everything_is_there() -> None:
    full = machine(RAPIDS_13 | TORCH_13, GPU)
    assert choose_backend("auto", full) == ("gpu", "NVIDIA H200 is visible and RAPIDS is installed")
    assert choose_backend("gpu", full) == ("gpu", "asked for")
    assert choose_backend("cpu", full) == ("cpu", "asked for")
    without_cuml = replace(full, libraries={name: one for name, one in full.libraries.items() if name != "cuml"})
    assert choose_backend("gpu", without_cuml) == ("gpu", "asked for")


OBSTACLES = [
    (
        machine(RAPIDS_13 | TORCH_13),
        "no NVIDIA driver answers",
        "on a machine with a GPU: pip install 'cudf-cu13==26.10.*'",
    ),
    (
        machine(TORCH_13, GPU),
        "cudf, cupy, rmm not installed",
        "pip install 'cudf-cu13==26.10.*' 'cuml-cu13==26.10.*'",
    ),
    (machine(TORCH_13, GPU), "cudf", "conda install -c rapidsai -c conda-forge cudf=26.10 cuml=26.10 'cupy>=14.2'"),
    (
        machine(RAPIDS_13 | TORCH_13 | {"cupy": Library("cupy", "14.0.1", ("cupy-cuda13x",), 13)}, GPU),
        "CuPy 14.0.1 is older than 14.2",
        "pip install 'cupy-cuda13x>=14.2'",
    ),
    (machine(TORCH_13, GPU, cuda=(12, 8)), "cudf", "pip install 'cudf-cu12==26.10.*'"),
    (
        replace(machine(RAPIDS_13 | TORCH_13, GPU), no_libcuda="libcuda.so.1: cannot open shared object file"),
        "CUDA's driver library does not load (libcuda.so.1",
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ),
    (machine(RAPIDS_13, GPU), "torch not installed", "pytorch.org"),
    (
        machine(RAPIDS_13 | {"torch": Library("torch", "2.13.0+cpu", ("torch",))}, GPU),
        "torch 2.13.0+cpu is built without CUDA",
        "pytorch.org",
    ),
    (
        machine(RAPIDS_13 | TORCH_13, GPU, cuda=(12, 8)),
        "cudf is built for CUDA 13, the driver (580.82.07) runs CUDA 12",
        "a newer driver, or pip install 'cudf-cu12",
    ),
]


@pytest.mark.parametrize(("there", "problem", "remedy"), OBSTACLES)
def test_what_stands_in_the_way_is_named_with_the_line_that_helps(there: Machine, problem: str, remedy: str) -> None:
    chosen, reason = choose_backend("auto", there)
    assert chosen == "cpu"
    assert problem in reason
    with pytest.raises(BackendMissing) as raised:
        choose_backend("gpu", there)
    assert raised.value.problem == reason
    assert remedy in raised.value.remedy


def test_an_unknown_backend_is_refused() -> None:
    with raises(BadConfig, where="select(backend=)", got="cuda"):
        choose_backend("cuda", machine({}))
