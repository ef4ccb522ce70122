"""Where the tests of each module are: `test_<module>.py` in that folder of `tests/`, or in the list below."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "backend/arrow": "backend/test_cpu",
    "backend/dates": "expressions/test_times",
    "backend/candidates": "evaluation/test_comparison",
    "backend/device/memory": "rapids/test_memory",
    "backend/fused/kernel": "kernels/test_compiled",
    "backend/fused/launch": "kernels/test_compiled",
    "backend/gpu": "rapids/test_gpu_twin",
    "backend/kernels": "backend/test_float_kernels",
    "backend/moments": "preprocessing/summaries/test_moments",
    "backend/value_counts": "preprocessing/summaries/test_counts",
    "backend/isotonic": "evaluation/test_calibration",
    "cli/demo": "project/test_program",
    "cli/table": "cli/test_score",
    "cli/warm_up": "cli/test_main",
    "expressions/derivation": "transforms/test_columns",
    "expressions/dtypes": "expressions/test_expression",
    "expressions/functions": "expressions/test_expression",
    "expressions/operands": "expressions/test_evaluate",
    "expressions/syntax": "expressions/test_expression",
    "expressions/translate": "io/relational/test_predicates",
    "expressions/tree": "expressions/test_expression",
    "evaluation/entrants": "evaluation/test_comparison",
    "evaluation/host_rows": "test_lists",
    "evaluation/row_table": "evaluation/test_comparison",
    "io/formats/file_source": "io/formats/test_bad_files",
    "io/formats/ipc": "io/formats/test_orc_ipc",
    "io/formats/orc": "io/formats/test_orc_ipc",
    "io/formats/spill": "io/relational/test_scratch",
    "io/formats/text": "io/relational/test_csv",
    "io/jobs/destination": "io/jobs/test_store_folders",
    "io/planning/query": "io/test_dataset",
    "io/planning/row_filters": "io/planning/test_splits",
    "io/planning/run_partitions": "io/planning/test_partitions",
    "io/planning/table": "io/test_dataset",
    "io/relational/gathering": "io/relational/test_scratch",
    "io/relational/gpu_engine": "rapids/test_plans",
    "io/relational/incoming": "io/relational/test_engine",
    "io/relational/scan": "io/relational/test_predicates",
    "io/relational/side_columns": "transforms/test_window_transform",
    "io/relational/sort": "io/relational/test_verbs",
    "io/stores": "io/stores/test_find_files",
    "models/dcn": "models/test_blocks",
    "models/forest": "rapids/test_trees",
    "models/ft_transformer": "models/test_blocks",
    "models/multitask": "models/test_networks",
    "models/resnet": "models/test_blocks",
    "models/tabular": "models/test_networks",
    "models/xgboost_fit": "models/test_xgb",
    "models/xgboost_rows": "models/test_xgb",
    "monitoring/profile": "monitoring/test_drift",
    "monitoring/reports": "monitoring/test_drift",
    "pipeline/bound_pipeline": "pipeline/test_pipeline",
    "pipeline/cluster_loader": "cluster/test_training",
    "pipeline/feature_group": "pipeline/test_pipeline",
    "pipeline/features": "pipeline/test_pipeline",
    "pipeline/fit_report": "pipeline/test_fit",
    "pipeline/labels": "pipeline/test_target",
    "pipeline/partition_pass": "pipeline/test_fit",
    "pipeline/leak_hints": "pipeline/test_auto_features",
    "pipeline/plan": "pipeline/test_explain",
    "pipeline/transform_plan": "pipeline/test_pipeline",
    "preprocessing/categories": "preprocessing/steps/test_categorify",
    "preprocessing/learned_state": "laws/test_fold",
    "preprocessing/steps/distributions": "preprocessing/steps/test_power_transformer",
    "preprocessing/steps/encoders": "preprocessing/steps/test_one_hot",
    "preprocessing/steps/groups": "preprocessing/steps/test_group_stats",
    "preprocessing/steps/reduction": "preprocessing/steps/test_pca",
    "preprocessing/summaries": "preprocessing/summaries/test_moments",
    "saving/calibration_rows": "evaluation/test_calibration",
    "saving/scorer": "saving/test_artifact",
    "step": "test_parameters",
    "tensors/batch": "tensors/test_ragged",
    "training/loop/activation_checkpointing": "training/loop/test_settings",
    "training/loop/evaluation": "training/loop/test_trainer",
    "training/loop/report_view": "training/loop/test_report",
    "training/loop/run_start": "training/loop/test_trainer",
    "training/loop/train_state": "training/checkpointing/test_checkpoints",
    "transforms/transform": "laws/test_transforms",
}


def test_each_module_has_its_tests() -> None:
    package, tests = ROOT / "gpupipe", ROOT / "tests"
    modules = {str(path.relative_to(package).with_suffix("")): path for path in package.rglob("*.py")}
    wanted = {name for name in modules if not name.endswith(("__init__", "__main__", "version"))}
    places = {name: tests / (name.split("/")[0] if "/" in name else ".") for name in wanted}
    alone = {name for name in wanted if not list(places[name].rglob(f"test_{Path(name).name}.py"))}
    assert alone <= set(ELSEWHERE), f"without tests of their own: {sorted(alone - set(ELSEWHERE))}"
    assert set(ELSEWHERE) <= alone, f"have tests of their own: {sorted(set(ELSEWHERE) - alone)}"
    assert [path for path in ELSEWHERE.values() if not (tests / f"{path}.py").exists()] == []
