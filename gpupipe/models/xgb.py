"""XGBoost's trees as a model over `Batch`es, fitted from loaders, and saved as arrays that are checked when loaded."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from gpupipe.errors import AttributeNotFound, BackendMissing, BadConfig, NotFitted, SchemaMismatch
from gpupipe.models.booster import (
    DTYPES,
    MAX_CATEGORIES,
    MAX_DEPTH,
    OBJECTIVES,
    Arrays,
    Layout,
    find_fault,
    write_booster,
)
from gpupipe.models.forest import make_forest
from gpupipe.models.tabular import Tabular
from gpupipe.schema import Schema
from gpupipe.support.calls import answer_calls, find_argument
from gpupipe.support.text import derive
from gpupipe.support.validation import (
    check_choice,
    check_instance,
    check_integer,
    check_number,
    is_number,
    refuse_argument,
    to_python,
)
from gpupipe.tensors.batch import Batch

ROUNDS, ROUNDS_UNJUDGED = 1000, 300  # with a valid loader, which stops them, and without one
ROWS_OF_HISTORY = 20
# Lists of categories on one side of a split, and leaves of few rows, learn ids by heart: chosen on the tables to tune
# by of `benchmarks/tables.py`.
MOST_LISTED, LEAST_ROWS = 4, {"regression": 5}
PARAMS = {
    *("colsample_bylevel", "colsample_bynode", "colsample_bytree", "gamma", "grow_policy", "interaction_constraints"),
    *("max_bin", "max_cat_threshold", "max_cat_to_onehot", "max_delta_step", "max_leaves", "min_child_weight"),
    *("monotone_constraints", "reg_alpha", "reg_lambda", "sampling_method", "scale_pos_weight", "subsample"),
}
EXACT_IN_FLOAT32 = 1 << 24


_ARGUMENTS = {"n_estimators", "learning_rate", "max_depth", "early_stopping_rounds", "max_categories", "params", "seed"}


class XGB(Tabular):
    """Gradient-boosted trees of XGBoost (Chen & Guestrin 2016, arXiv:1603.02754), by histograms.

    `forward` computes margins: log-odds, logits, or values in the units that the loader stores. `Trainer.fit` fits it,
    and keeps the rounds up to the one of the least loss on the valid loader. A missing id goes the way the trees have
    learned for it, unknown is a category of its own. Weights count by their ratio to their mean. It needs the package
    xgboost-cpu, or xgboost-cu13 where rows lie on a GPU (not yet run on one; there nvForest predicts where it is
    installed).

    Args:
        numeric: F, how many numeric features a batch has.
        cardinalities: C numbers of ids, missing and unknown included (at least 2 each).
        outputs: 1 for a regression and a binary target, else K classes or targets; each has a tree a round.
        task: "binary", "multiclass", "multilabel" or "regression"; `from_schema` knows it.
        n_estimators: the most rounds; "auto" for 1,000 with a valid loader, and 300 without one.
        learning_rate: what each tree's values are multiplied by.
        max_depth: of a tree, at most 64.
        early_stopping_rounds: rounds without a lower loss on the valid loader after which the fit ends.
        max_categories: ids of columns of more are split by their order, which for `Categorify` is that of their
            frequency; 0 for all. Many ids that mean nothing do less harm so; `gp.compare` tries both.
        params: further parameters of XGBoost, named as in its scikit-learn interface: `{"min_child_weight": 10}`. Other
            than there `max_cat_threshold` is 4 unless it is given, and of a regression `min_child_weight` 5.
        external_memory: whether the quantised matrix is kept in files; "auto" where it does not fit in memory.
        quantiles: of one target that is a number, ascending, such as (0.05, 0.5, 0.95): one output each, learned with
            the pinball loss, each by trees of its own; predictions are sorted, so that they never cross.
        seed: of the draws of rows and columns, where `params` asks for some.
        lists: has to be empty: trees take no lists.

    Raises:
        BadConfig: a size or a parameter that makes no sense, lists, ids beyond 2^24.
        NotFitted: `forward` before a fit.
        BackendMissing: XGBoost is not installed, at the first fit or prediction.

    Memory: some 50 bytes a node on the host, twice; XGBoost's copy of the trees on the device of the batches.

    Example:
        >>> import gpupipe as gp, pandas as pd
        >>> frame = pd.DataFrame({"x": range(300), "y": [v // 100 % 2 for v in range(300)]})
        >>> pipeline = gp.Pipeline([], gp.Features(["x"], target="y == 1")).fit(frame)
        >>> model = gp.models.XGB.from_schema(pipeline.schema, n_estimators=100)
        >>> model.fit_loaders(pipeline.loader(frame))
        >>> model(next(iter(pipeline.loader(frame)))).shape
        torch.Size([300])
    """

    params_names: ClassVar[frozenset[str]] = frozenset(PARAMS)

    def __init__(
        self,
        numeric: int,
        cardinalities: Sequence[int] = (),
        outputs: int = 1,
        *,
        task: str = "binary",
        n_estimators: int | Literal["auto"] = "auto",
        learning_rate: float = 0.05,
        max_depth: int = 6,
        early_stopping_rounds: int = 50,
        max_categories: int = MAX_CATEGORIES,
        params: Mapping[str, Any] | None = None,
        external_memory: bool | Literal["auto"] = "auto",
        quantiles: Sequence[float] | None = None,
        seed: int = 0,
        lists: Mapping[str, int] | None = None,
    ) -> None:
        self.remember(locals())
        config = self._config
        _check(self, config)
        config["params"] = {name: to_python(value) for name, value in params.items()} if params else None
        sizes = (numeric, tuple(config["cardinalities"]), self.outputs, task, config["max_categories"])
        self.layout = Layout(*sizes, self.quantiles or ())
        self._trees: Arrays = {}
        self._predictors: dict[torch.device, Callable[[Tensor], Tensor]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse arguments of the constructor, which scikit-learn's estimators take as attributes."""
        if name in _ARGUMENTS:
            problem, expected = "an argument is given when the model is made", f"{name}= of from_schema"
            remedy = f"gp.models.XGB.from_schema(pipeline.schema, {name}={value!r})"
            raise AttributeNotFound(f"XGB.{name}", problem, expected=expected, remedy=remedy)
        super().__setattr__(name, value)

    @property
    def task(self) -> str:
        """The task: "binary", "multiclass", "multilabel" or "regression"."""
        return self.layout.task

    @classmethod
    @answer_calls
    def from_schema(cls, schema: Schema, **options: Any) -> Self:
        """Build the trees for `pipeline.schema`; as `Tabular.from_schema`."""
        if getattr(schema, "lists", None):
            raise _refuse_lists([item.name for item in schema.lists], min(schema.lists[0].lineage))
        return super().from_schema(schema, **options)

    def check_schema(self, schema: Schema) -> None:
        """Raise `SchemaMismatch` for another pipeline's output or task."""
        super().check_schema(schema)
        if schema.task != self.task:
            problem, remedy = "the model was made for another task", "XGB.from_schema(pipeline.schema)"
            raise SchemaMismatch("XGB", problem, got=schema.task, expected=self.task, remedy=remedy)

    def fit_loaders(
        self,
        train: Any,
        valid: Any = None,
        *,
        device: torch.device | None = None,
        class_weight: Tensor | None = None,
        ranks: Any = None,
        on_round: Callable[[int, dict[str, float], Tensor | None, Batch | None], None] | None = None,
    ) -> None:
        """Fit on a loader's rows, which XGBoost reads four times or more; `Trainer.fit` calls this and keeps a history.

        Args:
            train: batches with targets, resident or streamed; of each pass the same.
            valid: ends the fit after `early_stopping_rounds` rounds without a lower loss (of quantiles that are not
                sorted), and the trees up to the best round are kept.
            device: where the rows are quantised and the trees grow; by default the loader's.
            class_weight: a weight for each class, times that of the row, in training.
            ranks: the group of ranks of which each has rows of its own, as `Trainer.fit` opens it; None for one.
            on_round: gets the numbers of about 20 rounds and of the best one, their losses, and margins, targets and
                weights of the valid rows. The best one has no `train_loss` where it is none of the 20.

        Raises `BadData`: no rows, no target, or values that XGBoost refuses; `ClusterLost`: another rank failed.
        Memory: the quantised matrix and what XGBoost keeps of each row, some 9 bytes a value; two chunks of rows.
        """
        config = self._config
        rounds = config["n_estimators"]
        if rounds == "auto":
            rounds = ROUNDS_UNJUDGED if valid is None else ROUNDS
        library = _import_library()
        settings = library.BoostSettings(
            params={
                "learning_rate": config["learning_rate"],
                "max_depth": config["max_depth"],
                "seed": config["seed"] % (1 << 31),
                "max_cat_threshold": MOST_LISTED,
                "min_child_weight": LEAST_ROWS.get(self.task, 1),
                **(config["params"] or {}),
            },
            rounds=rounds,
            patience=config["early_stopping_rounds"],
            log_every=max(1, rounds // ROWS_OF_HISTORY),
            external_memory=config["external_memory"],
            device=device or getattr(train, "device", torch.device("cpu")),
        )
        self._trees = library.fit_booster(
            train,
            valid,
            self.layout,
            settings,
            check=self.check,
            class_weight=class_weight,
            ranks=ranks,
            on_round=on_round or (lambda *_: None),
        )
        self._predictors = {}

    def forward(self, batch: Batch) -> Tensor:
        self.check(batch)
        self.check_fitted()
        device = batch.numeric.device
        if device not in self._predictors:
            self._predictors[device] = self._make_predictor(device)
        matrix = torch.empty(len(batch), self.layout.width, device=device)
        self.layout.write_matrix(batch, matrix)
        margins = self._predictors[device](matrix) if len(batch) else matrix
        return self.layout.order(margins.reshape((len(batch), self.outputs) if self.outputs > 1 else len(batch)))

    def _make_predictor(self, device: torch.device) -> Callable[[Tensor], Tensor]:
        if device.type == "cuda" and find_spec("nvforest"):
            return make_forest(self._trees, self.layout, device)
        predictor: Callable[[Tensor], Tensor] = _import_library().make_predictor(
            write_booster(self._trees, self.layout), device
        )
        return predictor

    @property
    def num_nodes(self) -> int:
        """The number of all trees' nodes, leaves too."""
        return len(self._trees["left_children"]) if self._trees else 0

    def extra_repr(self) -> str:
        """Return the task and the number of rounds."""
        return f"{self.task}, {len(self._trees['num_nodes']) // self.outputs if self._trees else 0} rounds"

    def check_fitted(self) -> None:
        if not self._trees:
            remedy = "gp.Trainer(model).fit(pipeline.loader(train), pipeline.loader(valid))"
            raise NotFitted("XGB", "it has no trees yet", expected="a model that is fitted", remedy=remedy)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination.update({f"{prefix}{name}": tensor for name, tensor in self._trees.items()})
        destination[f"{prefix}id_keys"] = self.id_keys

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Take trees over that are checked; others are among torch's errors of loading."""
        arrays = {name: state_dict[f"{prefix}{name}"].cpu() for name in DTYPES if f"{prefix}{name}" in state_dict}
        missing_keys += [f"{prefix}{name}" for name in DTYPES if name not in arrays]
        names = {f"{prefix}{name}" for name in (*DTYPES, "id_keys")}
        unexpected_keys += [name for name in state_dict if name.startswith(prefix) and name not in names]
        keys = state_dict.get(f"{prefix}id_keys", self.id_keys)
        if keys.shape == self.id_keys.shape:
            self.id_keys.copy_(keys)
        else:
            error_msgs.append(f"these are no keys of {len(self.id_keys):,} ids: {tuple(keys.shape)}")
        if len(arrays) == len(DTYPES):
            fault = find_fault(arrays, self.layout)
            if fault is None:
                self._trees, self._predictors = arrays, {}
            else:
                error_msgs.append(f"these are no trees of such a model: {fault}")

    def __getstate__(self) -> dict[str, Any]:
        """Leave out XGBoost's copy of the trees, which the first prediction makes."""
        return self.__dict__ | {"_predictors": {}}


def _import_library() -> Any:
    """Import what needs XGBoost, which is optional."""
    try:
        return importlib.import_module("gpupipe.models.xgboost_fit")
    except ImportError as cause:
        raise BackendMissing(
            "gp.models.XGB",
            "XGBoost is not installed",
            expected="the package xgboost-cpu, or xgboost-cu13 where rows lie on a GPU (xgboost-cu12 with CUDA 12)",
            remedy="pip install 'xgboost-cpu>=3.1'",
        ) from cause


def _refuse_lists(names: list[str], column: str) -> BadConfig:
    """Build the error for features that are lists, the first of them of this column."""
    instead = "T." + derive(column, "len({})", f"num_{column}")
    remedy = f"{instead} and such columns as features in place of the lists, or gp.models.MLP, which takes lists"
    return refuse_argument("XGB", "lists", names, "no lists", remedy, problem="trees take no lists")


def _check(model: XGB, config: Mapping[str, Any]) -> None:
    """Raise `BadConfig` for an invalid argument."""
    check_choice(model, OBJECTIVES, task=config["task"])
    check_integer(model, "[1, inf)", "auto", n_estimators=config["n_estimators"])
    check_number(model, "(0, inf)", learning_rate=config["learning_rate"])
    check_integer(model, f"[1, {MAX_DEPTH}]", max_depth=config["max_depth"])
    check_integer(model, "[1, inf)", early_stopping_rounds=config["early_stopping_rounds"])
    check_integer(model, "[0, inf)", max_categories=config["max_categories"])
    check_choice(model, ("auto", True, False), external_memory=config["external_memory"])
    outputs, several = config["outputs"], config["task"] in ("multiclass", "multilabel")
    if config["quantiles"] is not None and config["task"] != "regression":
        problem, expected = "quantiles are of a number", "task='regression'"
        raise refuse_argument(model, "quantiles", config["quantiles"], expected, "task='regression'", problem=problem)
    if config["task"] != "regression" and (outputs > 1) != several:
        expected = f"{'2 or more' if several else '1'} where the task is {config['task']}"
        raise refuse_argument(model, "outputs", outputs, expected, "XGB.from_schema(pipeline.schema)")
    for count in config["cardinalities"]:
        if count > EXACT_IN_FLOAT32:
            expected, remedy = "at most 2^24 ids, which are exact in float32", "pre.Categorify(min_frequency=10)"
            raise refuse_argument(model, "cardinalities", count, expected, remedy, problem="too many ids")
    if config["lists"]:
        raise _refuse_lists(list(config["lists"]), str(next(iter(config["lists"]))))
    params = config["params"]
    check_instance(model, Mapping, "parameters of XGBoost by their names", None, params=params)
    for name, value in (params or {}).items():
        if name not in PARAMS:
            near = find_argument(str(name), [*PARAMS, *config])
            remedy = "params=None" if near is None else f"{near}=..." if near in config else f"params={{{near!r}: ...}}"
            expected, problem = f"some of {', '.join(sorted(PARAMS))}", "no parameter that may be set here"
            raise refuse_argument(model, "params", name, expected, remedy, problem=problem)
        if not (isinstance(value, str) or (is_number(value) and math.isfinite(value))):
            expected, remedy = "a number or text", f"params={{{name!r}: '...'}}"
            raise refuse_argument(model, "params", {name: value}, expected, remedy)
