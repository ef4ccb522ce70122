"""What `make bench-gpu` runs, dry: every part on the CPU, a few rows, and the result file well formed."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from importlib import import_module
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.profiler_util import FunctionEvent

from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from tests.project.benchmark_scripts import BENCHMARKS, benchmark_script

FOLDER = BENCHMARKS / "gpu"
HOPS = 6
EVERY = ["ceilings", "handover", "features", "estimators", "operators", "decode", "trainer", "whole", "large"]
# What is no operator, does what a function of the user's does, or moves no values.
WITHOUT_WORK = {
    *("Columns", "CrossFittedStep", "LearnedStep", "Invertible", "StatelessStep", "Summary", "EstimatorStep"),
    *("GatheredStep", "Transform", "WholeTableTransform", "Map", "Select", "Drop", "Rename", "ListSlice", "Expect"),
}


# `measure.py` is watched at these, each in a process of its own; the rest share one, for to start costs most.
APART = ["ceilings", "decode"]
TOGETHER = """
import sys, time
from importlib import import_module
from pathlib import Path
from stage import Stage

scratch, *names = sys.argv[1:]
for name in names:
    before = {"ceilings": {"copy": {"gb_per_s": 1.0}}}
    out = Path(scratch) / f"{name}.jsonl"
    import_module(f"parts.{name}").measure(Stage(False, time.time() + 900, Path(scratch), out, before))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a dry run."""
    out = tmp_path_factory.mktemp("bench") / "gpu.json"
    ended(str(FOLDER / "measure.py"), str(out), "--dry", "--only", *APART)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, report: dict[str, Any]) -> dict[str, Any]:
    """What each part finds, dry."""
    scratch, names = tmp_path_factory.mktemp("parts"), [name for name in EVERY if name not in APART]
    ended("-c", TOGETHER, str(scratch), *names)
    lines = {name: map(json.loads, (scratch / f"{name}.jsonl").read_text().splitlines()) for name in names}
    told = {name: {line["name"]: line["found"] for line in some if "found" in line} for name, some in lines.items()}
    return told | {name: part["found"] for name, part in report["parts"].items()}


def ended(*arguments: str) -> None:
    """Run Python with what lies in the folder, to a good end."""
    path = os.pathsep.join(map(str, (FOLDER, FOLDER.parent, FOLDER.parents[1])))
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_run_is_told_part_by_part(report: dict[str, Any]) -> None:
    assert report["dry"] and not report["bars"] and "commit" in report["machine"]
    assert list(report["parts"]) == APART
    for name, part in report["parts"].items():
        assert part["found"] and "failed" not in part and part["clocks"] is not None and part["seconds"] > 0, name
    assert report["gpu"] == {} or report["gpu"]["driver"]


def test_what_the_parts_find(found: dict[str, Any]) -> None:
    assert found.keys() == set(EVERY) and all(found.values()) and '"failed"' not in json.dumps(found)
    assert set(found["ceilings"]) == {"copy", "matmul", "host_link"}
    assert len(found["handover"]) == HOPS and all(hop["same_memory"] for hop in found["handover"].values())
    assert {*pre.__all__, *T.__all__} <= {name.partition(",")[0] for name in found["operators"]} | WITHOUT_WORK
    assert all(job["share_of_copy"] > 0 for job in found["operators"].values())
    assert len(found["features"]) == 5 and not any("fused" in case for case in found["features"].values())
    assert {"gpupipe", "library", "scikit-learn"} <= set(found["estimators"]["PCA"])
    assert any(name.startswith("zstd, ") for name in found["decode"])
    contenders = {name: one for name, one in found["whole"].items() if isinstance(one, dict)}
    assert len(contenders) == 5 and set(found["large"]) < set(contenders)
    for name, contender in [*contenders.items(), *found["large"].items()]:
        assert [run["cold"] for run in contender["runs"]] == [True, False], name
        assert contender["warm_s"] > 0 and "scaled_from_rows" not in contender, name


def test_bars_that_nothing_was_found_for_are_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = benchmark_script("gpu/bars.py", monkeypatch)
    assert {bar["met"] for bar in bars.bars_of({}, EVERY)} == {False}
    assert {bar["part"] for bar in bars.bars_of({}, ["ceilings", "large"])} == {"large"}
    hop = {"bytes_copied": 0, "same_memory": True}
    parts = {
        "whole": {"gpupipe": {"warm_s": 2.0}, "cuDF, slices": {"warm_s": 3.0}, "gpupipe on the CPU": {"warm_s": 16.0}},
        "large": {"gpupipe": {"warm_s": 2.0}, "gpupipe on the CPU": {"warm_s": 29.0}},
        "handover": {"one": hop, "other": dict(hop)},
        "features": {"float32": {"fused": {"share_of_copy": 0.7}, "times_unfused": 4.0}},
        "trainer": {"bars": [{"what": "w", "found": 1.0, "bar": 2.0, "met": False}]},
    }
    assert [bar["met"] for bar in bars.bars_of(parts, EVERY)] == [True, False, True, False, True, False, False]
    parts["handover"]["other"]["same_memory"] = False
    assert [bar["met"] for bar in bars.bars_of(parts, EVERY)][2] is False


def test_cold_and_warm_are_apart_and_what_is_scaled_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = benchmark_script("gpu/parts/whole.py", monkeypatch)
    cold = {"rows": 100, "cold": True, "seconds": 9.0}
    assert whole.summary([cold, {"rows": 50, "dropped": "2 s were not left"}], 100) == {"rows": 100, "cold_s": 9.0}
    warm = {"rows": 50, "cold": False, "seconds": 2.0}
    told = {"rows": 100, "cold_s": 9.0, "warm_s": 4.0, "scaled_from_rows": 50}
    assert whole.summary([cold, warm], 100) == told
    assert whole.warm([cold, warm]) == {50: 2.0}
    assert whole.crossover({10: 1.0, 1000: 100.0}, {10: 10.0, 1000: 10.0}) == pytest.approx(100)
    assert whole.crossover({10: 5.0, 99: 50.0}, {10: 1.0}) == 10
    assert whole.crossover({10: 1.0}, {10: 2.0}) is None


def test_a_part_that_is_stopped_keeps_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = benchmark_script("gpu/measure.py", monkeypatch)
    lines = [{"name": "a", "found": 1}, {"dropped": "b"}, {"failed": "why"}]
    assert measure.collected(map(json.dumps, lines)) == {"found": {"a": 1}, "dropped": ["b"], "failed": "why"}
    assert sum(measure.PARTS.values()) / 60 <= measure.MINUTES < 9.9
    assert list(measure.PARTS | measure.ALONE) == EVERY


def test_the_first_warm_run_is_made_whatever_the_cold_one_took(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    contender = benchmark_script("gpu/contender.py", monkeypatch)
    monkeypatch.setattr(contender, "contenders", lambda gpu: {"one": lambda files: float(len(files))})
    late = str(time.time() - 60)
    runs = list(contender.lines(["one", str(tmp_path), late, late, "300", "300", "200", "--dry"]))
    assert [(run["rows"], run.get("cold"), "dropped" in run) for run in runs] == [
        (300, True, False),
        (300, False, False),
        (200, None, True),
    ]
    assert runs[0]["seconds"] > 60 > runs[1]["seconds"]
    large = benchmark_script("gpu/parts/large.py", monkeypatch)
    for module in (benchmark_script("gpu/parts/whole.py", monkeypatch), large):
        for name in (module.OURS, module.HAND):
            assert module.CONTENDERS[name][0][:2] == [module.ROWS, module.ROWS]
        assert sum(share for _, share in module.CONTENDERS.values()) == pytest.approx(1)


def broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("no such kernel")


@pytest.mark.parametrize(
    ("part", "what", "call", "name"),
    [
        ("features", "of_case", 0, "float32"),
        ("trainer", "of_way", 1, "captured, batch 8192"),
        ("handover", "share", 0, "frame's column to tensor (share)"),
        ("handover", "outputs", 0, "estimator's output to tensor"),
    ],
)
def test_what_fails_is_named_and_the_rest_go_on(
    part: str, what: str, call: int, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measure = benchmark_script("gpu/measure.py", monkeypatch)
    script, out, calls = import_module(f"parts.{part}"), tmp_path / "part.jsonl", count()
    real = getattr(script, what)
    monkeypatch.setattr(script, what, lambda *given: broken() if next(calls) == call else real(*given))
    script.measure(measure.Stage(gpu=False, until=time.time() + 600, scratch=tmp_path, out=out))
    found = measure.collected(out.read_text().splitlines())["found"]
    assert {key for key, told in found.items() if "failed" in told} == {name} and len(found) > 2
    assert "no such kernel" in found[name]["failed"]


def test_failures_are_found_wherever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = benchmark_script("environment.py", monkeypatch)
    part = {"found": {"PCA": {"library": {"failed": "why"}, "ours": {"median": 1}}, "a": [{"failed": "x"}], "b": True}}
    assert list(environment.failures({"estimators": part})) == [
        "estimators: found: PCA: library",
        "estimators: found: a: 0",
    ]
    assert list(environment.failures({"whole": {"failed": "x", "found": {}}})) == ["whole"]
    measure = benchmark_script("gpu/measure.py", monkeypatch)
    told = measure.told("estimators", part | {"seconds": 1.0, "dropped": []})
    assert told.startswith("FAILED estimators") and "PCA: library" in told


def test_only_work_of_the_device_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    script = benchmark_script("gpu/trainer.py", monkeypatch)
    kinds = torch.autograd.DeviceType

    def event(name: str, device: Any, **told: Any) -> FunctionEvent:
        return FunctionEvent(1, name, 0, 0.0, 5.0, device_type=device, **told)

    events = [
        event("aten::add", kinds.CPU),
        event("add_kernel", kinds.CUDA),
        event("Optimizer.step#AdamW.step", kinds.CUDA, is_user_annotation=True),
    ]
    assert [e.name for e in script.work_of(events, torch.device("cuda"))] == ["add_kernel"]
    monkeypatch.setattr(script, "work_of", lambda events, device: [])
    assert script.profiled(lambda: None, torch.device("cpu"), 1) == {"kernels": None, "idle": None}
    ways = {"captured": {"ms": 1.0, "million_rows_per_s": 30.0, "idle": None}}
    bar = script.bars({1024: ways}, {"rows": 1, "share": 0.6})[0]
    assert bar["what"].startswith("idle share") and bar["found"] is None and not bar["met"]


def test_an_epoch_of_no_whole_number_of_graphs_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    script, table = benchmark_script("gpu/trainer.py", monkeypatch), benchmark_script("loader.py", monkeypatch).table
    block, _ = table(16 * 13 + 5)
    assert len(list(islice(script.steps_of(block, 16, graph=8), 40))) == 40


def test_the_commit_is_known_without_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment = benchmark_script("environment.py", monkeypatch)
    monkeypatch.delenv("GPUPIPE_COMMIT", raising=False)
    tree, carried = tmp_path / "tree", tmp_path / "carried"
    (tree / "benchmarks").mkdir(parents=True)
    for name in (".gitattributes", "benchmarks/commit.txt"):
        shutil.copy(BENCHMARKS.parent / name, tree / name)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))  # where no git is
        assert environment.commit(tree) is None and environment.environment()["uncommitted_changes"] is None
        patch.setenv("GPUPIPE_COMMIT", "1234abcd")
        assert environment.commit(tree) == "1234abcd"
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git = ["git", "-C", str(tree), "-c", "user.name=one", "-c", "user.email=one@example.com"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *arguments], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert environment.commit(tree) == head
    archive = subprocess.run([*git, "archive", "HEAD"], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as file:
        file.extractall(carried, filter="data")
    assert environment.commit(carried) == head


def test_a_report_of_questions_is_there_after_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    smoke, out = benchmark_script("gpu/smoke.py", monkeypatch), tmp_path / "smoke_gpu.json"

    def ended_from_outside(lab: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setitem(smoke.CHECKS, "estimators", ended_from_outside)
    monkeypatch.setattr(sys, "argv", ["smoke.py", str(out), "--dry", "--only", "streams", "estimators"])
    with pytest.raises(KeyboardInterrupt):
        smoke.main()
    assert json.loads(out.read_text())["checks"]["streams"]["saw"]


def test_a_step_that_fails_keeps_the_answers_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    smoke, out = benchmark_script("gpu/smoke.py", monkeypatch), tmp_path / "smoke_gpu.json"
    monkeypatch.setattr(pre.KMeans, "finalize", broken)
    monkeypatch.setattr(sys, "argv", ["smoke.py", str(out), "--dry", "--only", "parity_of_steps"])
    assert smoke.main() == 1
    told = json.loads(out.read_text())
    saw = told["checks"]["parity_of_steps"]["saw"]
    assert {name for name, step in saw.items() if "failed" in step} == {"KMeans"} and len(saw) > 20
    section = benchmark_script("sections.py", monkeypatch).markdown("smoke_gpu", told)
    assert section.startswith("## Questions to a GPU") and "**failed**: parity_of_steps: saw: KMeans |" in section


def test_results_of_a_gpu_have_sections(
    report: dict[str, Any], found: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench, bars = (benchmark_script(name, monkeypatch) for name in ("bench.py", "gpu/bars.py"))
    page = tmp_path / "benchmarks.md"
    page.write_text(f"About.\n\n{bench.MARK}\n")
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    result = report | {"parts": parts_of(found), "bars": bars.bars_of({}, EVERY)}
    (tmp_path / "gpu.json").write_text(json.dumps(result))
    names = [name for name in bench.PAGES[bench.DOCS / "benchmarks.md"] if bench.result_file(name).exists()]
    assert names == ["gpu"]
    bench.write_page(page, names)
    text = page.read_text()
    assert "## On a GPU\n\n**A rehearsal on a CPU" in text and "commit `" in text and not (tmp_path / "plots").exists()
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    told = {line[0]: line[1:] for line in lines}
    ours, by_hand = (found["whole"][name]["warm_s"] for name in ("gpupipe", "cuDF, slices"))
    assert text.index("/ gpupipe, warm") < text.index("share of a copy") < text.index("asked for")
    assert told["gpupipe"][0] == "1" and float(told["cuDF, slices"][0]) == pytest.approx(by_hand / ours, 0.01)
    assert {*found["operators"], *found["estimators"], *found["handover"], *found["ceilings"]} <= told.keys()
    assert "captured, batch 8192" in told and any(name.startswith("zstd, ") for name in told)
    assert {"features: float32", "decode: 16 threads: 12 s were not left"} <= told.keys() and "float32" not in told
    assert told["handover: bytes copied by any hand-over"] == ["-", "at most 0", "**missed**"]


def parts_of(found: dict[str, Any]) -> dict[str, Any]:
    """As they stand in a result; what failed and what was left out among them, and nothing of `large`."""
    made = {name: {"found": dict(inner), "dropped": []} for name, inner in found.items() if name != "large"}
    made["features"]["found"]["float32"] = {"failed": "why"}
    made["decode"]["dropped"] = ["16 threads: 12 s were not left"]
    return made
