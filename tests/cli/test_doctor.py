"""What the doctor says of machines that tests make up, and of this one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpupipe.backend.device.probe import Gpu, Library, Machine, probe
from gpupipe.cli.doctor import Report, Row, Verdict, diagnose
from gpupipe.config import configure, settings

H200 = Gpu("NVIDIA H200", "GPU-1", 140 << 30, 139 << 30, (9, 0))
BASE = {name: Library(name, "3.0.6", (name,)) for name in ("numpy", "pandas", "pyarrow", "scikit_learn")}
TORCH = Library("torch", "2.13.0+cu130", ("torch",), 13)
RAPIDS = {
    "cudf": Library("cudf", "26.10.2", ("cudf-cu13",), 13, ("pandas<3.1.0,>=3.0.0", "rmm-cu13==26.10.*", "nvtx>=0.2")),
    "cuml": Library("cuml", "26.10.0", ("cuml-cu13",), 13, ("cudf-cu13==26.10.*",)),
    "cupy": Library("cupy", "14.2.0", ("cupy-cuda13x",), 13),
    "rmm": Library("rmm", "26.10.0", ("rmm-cu13",), 13),
}
GPU_MACHINE = Machine((H200,), "", "580.82.07", (13, 0), BASE | {"torch": TORCH} | RAPIDS)
CPU_MACHINE = Machine(
    (), "no NVIDIA driver answers", None, None, BASE | {"torch": Library("torch", "2.13.0+cpu", ("torch",))}
)


def having(machine: Machine, **libraries: Library) -> Machine:
    return replace(machine, libraries={**machine.libraries, **libraries})


def row(report: Report, name: str) -> Row:
    (found,) = [row for row in report.rows if row.name == name]
    return found


def test_a_complete_gpu_machine_is_fine() -> None:
    report = diagnose(GPU_MACHINE, "gpu")
    assert {row.verdict for row in report.rows} == {Verdict.OK}
    assert not any(row.remedy for row in report.rows)
    assert report.exit_code == 0
    assert row(report, "driver").value == "580.82.07, runs CUDA up to 13.0"
    assert row(report, "GPU 0").value == "NVIDIA H200, compute capability 9.0, 139.0 of 140.0 GiB free"
    assert row(report, "backend").value == "gpu: asked for"


def test_a_machine_without_a_gpu_is_fine() -> None:
    report = diagnose(CPU_MACHINE, "auto")
    assert {row.verdict for row in report.rows} == {Verdict.OK}
    assert row(report, "backend").value == "cpu: no NVIDIA driver answers"


def test_asking_for_a_gpu_that_is_not_there_fails() -> None:
    report = diagnose(CPU_MACHINE, "gpu")
    assert report.exit_code == 1
    assert "pip install 'cudf-cu13" in row(report, "backend").remedy


def test_the_backend_in_force_is_the_one_judged() -> None:
    before = settings().backend
    configure(backend="gpu")
    try:
        assert diagnose(CPU_MACHINE).exit_code == 1
    finally:
        configure(backend=before)


def test_a_gpu_without_rapids_is_told_what_to_install() -> None:
    report = diagnose(replace(GPU_MACHINE, libraries=BASE | {"torch": TORCH}), "auto")
    advice = row(report, "RAPIDS")
    assert (advice.verdict, report.exit_code) == (Verdict.WARN, 0)
    assert "cudf, cuml, cupy, rmm not installed" in advice.value
    assert "conda install -c rapidsai -c conda-forge" in advice.remedy
    without_cuml = {name: library for name, library in GPU_MACHINE.libraries.items() if name != "cuml"}
    advice = row(diagnose(replace(GPU_MACHINE, libraries=without_cuml), "gpu"), "RAPIDS")
    assert advice.value == "cuml not installed: k-means and PCA(solver='library') are not there"


@pytest.mark.parametrize("name", ["numpy", "pandas", "pyarrow", "scikit_learn", "torch"])
def test_a_missing_base_library_fails(name: str) -> None:
    libraries = {key: library for key, library in CPU_MACHINE.libraries.items() if key != name}
    public = name.replace("_", "-")
    missing = row(diagnose(replace(CPU_MACHINE, libraries=libraries), "cpu"), public)
    assert (missing.value, missing.verdict, missing.remedy) == ("not installed", Verdict.FAIL, f"pip install {public}")


def test_pandas_beyond_cudfs_range_fails() -> None:
    report = diagnose(having(GPU_MACHINE, pandas=Library("pandas", "3.1.2", ("pandas",))), "auto")
    assert row(report, "cudf").value == "26.10.2, which needs pandas<3.1.0,>=3.0.0 (found 3.1.2)"
    assert row(report, "cudf").remedy == "pip install 'pandas<3.1.0,>=3.0.0'"
    assert report.exit_code == 1


def test_rapids_libraries_of_two_releases_fail() -> None:
    report = diagnose(having(GPU_MACHINE, rmm=Library("rmm", "26.8.0", ("rmm-cu13",), 13)), "auto")
    assert row(report, "cudf").value == "26.10.2, which needs rmm-cu13==26.10.* (found 26.8.0)"


def test_a_cupy_that_refuses_empty_arrays_fails() -> None:
    report = diagnose(having(GPU_MACHINE, cupy=Library("cupy", "14.0.1", ("cupy-cuda12x",), 12)), "auto")
    found = row(report, "cupy")
    assert (found.value, found.verdict) == ("14.0.1, older than 14.2", Verdict.FAIL)
    assert found.remedy == "pip install 'cupy-cuda12x>=14.2'   or   conda install -c conda-forge 'cupy>=14.2'"
    assert row(report, "backend").value.startswith("cpu: ")


def test_requirements_for_other_interpreters_do_not_count() -> None:
    odd = Library("cupy", "14.2.0", ("cupy-cuda13x",), 13, ('numpy>=99; python_version < "3"', "Scikit_Learn>=99"))
    assert row(diagnose(having(GPU_MACHINE, cupy=odd), "auto"), "cupy").value == (
        "14.2.0, which needs Scikit_Learn>=99 (found 3.0.6)"
    )


def test_two_builds_of_one_library_fail() -> None:
    both = Library("cupy", "14.2.0", ("cupy-cuda12x", "cupy-cuda13x"), 13)
    found = row(diagnose(having(GPU_MACHINE, cupy=both), "auto"), "cupy")
    assert "installed as cupy-cuda12x and cupy-cuda13x" in found.value
    assert found.remedy.startswith("pip uninstall cupy-cuda12x cupy-cuda13x")
    assert found.verdict is Verdict.FAIL


def test_torch_for_another_cuda_than_rapids_fails() -> None:
    report = diagnose(having(GPU_MACHINE, torch=Library("torch", "2.13.0+cu126", ("torch",), 12)), "auto")
    assert row(report, "CUDA of torch").value == "12, beside RAPIDS for 13"
    assert row(report, "CUDA of torch").remedy.startswith(
        "pip install --force-reinstall torch   (PyPI's is for CUDA 13"
    )
    assert report.exit_code == 1


def test_torch_for_the_cuda_of_an_older_rapids_comes_from_its_own_index() -> None:
    twelve = {name: replace(library, cuda=12) for name, library in RAPIDS.items()}
    older = replace(having(GPU_MACHINE, **twelve), driver="550.90.07", cuda=(12, 4))
    advice = row(diagnose(older, "auto"), "CUDA of torch")
    assert advice.value == "13, beside RAPIDS for 12"
    assert "--index-url INDEX   (PyTorch's of builds for CUDA 12, see https://pytorch.org" in advice.remedy
    assert "pytorch-gpu 'cuda-version=12.*'" in advice.remedy


def test_where_all_of_it_is_newer_than_the_driver_each_is_told_to_become_older() -> None:
    report = diagnose(replace(GPU_MACHINE, driver="550.90.07", cuda=(12, 4)), "auto")
    assert row(report, "CUDA of torch").value == "13, newer than the driver's 12"
    assert "builds for CUDA 12" in row(report, "CUDA of torch").remedy
    fitting = having(GPU_MACHINE, torch=Library("torch", "2.13.0+cu126", ("torch",), 12))
    report = diagnose(replace(fitting, driver="550.90.07", cuda=(12, 4)), "auto")
    assert [row.name for row in report.rows if "CUDA" in row.name] == ["CUDA of RAPIDS"]


def test_torch_without_cuda_beside_rapids_fails_where_a_gpu_is() -> None:
    torch = Library("torch", "2.13.0+cpu", ("torch",))
    assert row(diagnose(having(GPU_MACHINE, torch=torch), "auto"), "CUDA of torch").verdict is Verdict.FAIL
    without = replace(
        having(GPU_MACHINE, torch=torch), gpus=(), hidden="no NVIDIA driver answers", driver=None, cuda=None
    )
    report = diagnose(without, "auto")
    assert (row(report, "CUDA of torch").verdict, report.exit_code) == (Verdict.WARN, 0)


def test_rapids_for_two_cudas_fails() -> None:
    report = diagnose(having(GPU_MACHINE, rmm=Library("rmm", "26.10.0", ("rmm-cu12",), 12)), "auto")
    assert (
        row(report, "CUDA of RAPIDS").value == "cudf for CUDA 13, cuml for CUDA 13, cupy for CUDA 13, rmm for CUDA 12"
    )


def test_a_driver_too_old_for_rapids_fails() -> None:
    found = row(diagnose(replace(GPU_MACHINE, driver="550.90.07", cuda=(12, 4)), "auto"), "CUDA of RAPIDS")
    assert (found.value, found.verdict) == ("13, newer than the driver's 12", Verdict.FAIL)
    assert "a driver 580 or newer" in found.remedy
    assert "cudf-cu12" in found.remedy


@pytest.mark.parametrize(
    ("gpu", "verdict", "remedy"),
    [
        (replace(H200, compute_capability=(7, 0)), Verdict.FAIL, "7.5 or newer"),
        (replace(H200, memory_free=1 << 30), Verdict.WARN, "nvidia-smi"),
        (replace(H200, memory_total=0, memory_free=0), Verdict.OK, ""),
    ],
)
def test_gpus_that_are_old_full_or_silent(gpu: Gpu, verdict: Verdict, remedy: str) -> None:
    found = row(diagnose(replace(GPU_MACHINE, gpus=(gpu,)), "auto"), "GPU 0")
    assert found.verdict is verdict
    assert remedy in found.remedy


def test_a_driver_without_its_cuda_library_fails() -> None:
    report = diagnose(replace(GPU_MACHINE, no_libcuda="libcuda.so.1: cannot open shared object file"), "gpu")
    assert row(report, "libcuda").value == "does not load: libcuda.so.1: cannot open shared object file"
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in row(report, "libcuda").remedy
    assert "does not load" in row(report, "backend").value
    assert report.exit_code == 1


def test_a_mask_that_hides_gpus_is_worth_a_warning() -> None:
    hidden = "CUDA_VISIBLE_DEVICES='0,7': no device is called '7', which hides it and all after it"
    report = diagnose(replace(GPU_MACHINE, hidden=hidden), "auto")
    assert row(report, "visible GPUs").value == hidden
    assert (row(report, "visible GPUs").verdict, report.exit_code) == (Verdict.WARN, 0)


def test_it_prints_as_a_table_with_remedies_below() -> None:
    report = Report((Row("Python", "3.11.7"), Row("torch", "not installed", Verdict.FAIL, "pip install torch")))
    assert str(report).splitlines() == [
        "ok    Python  3.11.7",
        "fail  torch   not installed",
        "              -> pip install torch",
    ]


def test_it_shows_in_a_notebook_with_its_text_escaped() -> None:
    page = Report((Row("cudf", "needs pandas<3.1.0", Verdict.FAIL, "pip"),))._repr_html_()
    cells = [cell.partition("<")[0] for cell in page.split(">")]
    assert [cell for cell in cells if cell][-4:] == ["fail", "cudf", "needs pandas&lt;3.1.0", "pip"]


def test_this_machine_can_do_what_the_tests_need() -> None:
    report = diagnose(probe(), "auto")
    assert report.exit_code == 0, str(report)
