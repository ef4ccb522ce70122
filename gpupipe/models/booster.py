"""Trees of a booster as arrays: taken from XGBoost, checked, and written as JSON for its parser.

XGBoost reads a model as it is: one wrong index, and it reads memory that is not its own. So a model is kept as arrays,
and the only JSON that reaches a parser is written here, of arrays that were checked.

All nodes of all trees stand one after the other, and have XGBoost's names. A tree of three nodes, x[1] < 0.5, and one
of a single leaf:

    num_nodes         3            1
    left_children     1  -1  -1   -1     number of a node in its tree, -1 in leaves
    right_children    2  -1  -1   -1
    split_indices     1   0   0    0     feature
    split_conditions  .5  -1  1    2     threshold, or the leaf's value
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from gpupipe.tensors.batch import Batch

MAX_CATEGORIES = 1024  # of a feature by default: with more, trees hold lists of thousands of ids
MAX_DEPTH = 64  # XGBoost goes down a tree by recursion in some places
NO_PARENT = 2**31 - 1

OBJECTIVES = {
    "binary": "binary:logistic",
    "multilabel": "binary:logistic",
    "multiclass": "multi:softprob",
    "regression": "reg:squarederror",
}
OF_QUANTILES = "reg:quantileerror"

Arrays: TypeAlias = dict[str, Tensor]

_OF_NODES = {
    **dict.fromkeys(("left_children", "right_children", "split_indices"), torch.int32),
    **dict.fromkeys(("split_type", "default_left"), torch.uint8),
    **dict.fromkeys(("split_conditions", "base_weights", "loss_changes", "sum_hessian"), torch.float32),
    "categories_sizes": torch.int32,  # how many categories go right; 0 where a node splits no categories
}
_FLOATS = [name for name, dtype in _OF_NODES.items() if dtype == torch.float32]
DTYPES = {**_OF_NODES, "num_nodes": torch.int32, "categories": torch.int32, "base_score": torch.float32}


@dataclass(frozen=True)
class Layout:
    """Layout of a booster's inputs and outputs: numbers, then ids; a tree an output and round.

    Ids of columns of more than `max_categories` are split by their order. Outputs are `quantiles` of one number, if
    there are some.
    """

    numeric: int
    cardinalities: tuple[int, ...]
    outputs: int
    task: str
    max_categories: int = MAX_CATEGORIES
    quantiles: tuple[float, ...] = ()

    @property
    def objective(self) -> str:
        """XGBoost's name of the objective."""
        return OF_QUANTILES if self.quantiles else OBJECTIVES[self.task]

    @property
    def width(self) -> int:
        """The number of features."""
        return self.numeric + len(self.cardinalities)

    @property
    def categories(self) -> list[int]:
        """The number of categories of each feature; 0 where it is split by order."""
        return [0] * self.numeric + [n if n <= self.max_categories else 0 for n in self.cardinalities]

    @property
    def feature_types(self) -> list[str]:
        """XGBoost's types of the features: q for numbers, c for categories."""
        return ["c" if count else "q" for count in self.categories]

    def order(self, margins: Tensor) -> Tensor:
        """Put B x K quantiles in ascending order, so that they never cross; other margins stay as they are."""
        return margins.sort(1).values if len(self.quantiles) > 1 else margins

    def write_matrix(self, batch: Batch, out: Tensor) -> None:
        """Write a batch as B x `width` float32: a missing id, 0, as NaN; one beyond its column's as unknown, 1."""
        out[:, : self.numeric] = batch.numeric
        if self.cardinalities:
            limits = torch.tensor(self.cardinalities, device=batch.codes.device)
            ids = torch.where((batch.codes < 0) | (batch.codes >= limits), 1, batch.codes)
            out[:, self.numeric :] = torch.where(ids == 0, torch.nan, ids)


def read_booster(text: bytes | bytearray) -> Arrays:
    """Read the arrays from the JSON that XGBoost itself has just written."""
    learner = json.loads(text)["learner"]
    trees = learner["gradient_booster"]["model"]["trees"]
    for tree in trees:
        sizes = [0] * len(tree["left_children"])
        for node, size in zip(tree["categories_nodes"], tree["categories_sizes"], strict=True):
            sizes[node] = size
        tree["categories_sizes"] = sizes
    columns: dict[str, Any] = {
        name: list(chain.from_iterable(tree[name] for tree in trees)) for name in (*_OF_NODES, "categories")
    }
    columns["num_nodes"] = [len(tree["left_children"]) for tree in trees]
    columns["base_score"] = json.loads(learner["learner_model_param"]["base_score"])
    return {name: torch.tensor(columns[name], dtype=dtype) for name, dtype in DTYPES.items()}


def find_fault(arrays: Mapping[str, Tensor], layout: Layout) -> str | None:
    """Describe the first reason why arrays are no trees of such a layout; None for trees that are safe to use.

    Each tree's nodes are reached once, from its first node on, children after their parent, at most 64 deep; what a
    node splits is a feature that exists, by a threshold or by categories that the feature has; all numbers are finite.
    Memory: some 100 bytes a node.
    """
    for name, dtype in DTYPES.items():
        if arrays[name].dtype != dtype or arrays[name].ndim != 1:
            return f"{name} is {arrays[name].ndim}-dimensional {arrays[name].dtype}, not a row of {dtype}"
    nodes, left, right, split = (
        arrays[name].long() for name in ("num_nodes", "left_children", "right_children", "split_indices")
    )
    sizes, categories, base_score = arrays["categories_sizes"].long(), arrays["categories"], arrays["base_score"]
    if not len(nodes) or len(nodes) % layout.outputs or len(base_score) != layout.outputs:
        return f"{len(nodes)} trees and {len(base_score)} base scores, and there are {layout.outputs} outputs"
    if int(nodes.min()) < 1 or any(len(arrays[name]) != int(nodes.sum()) for name in _OF_NODES):
        return "the trees' numbers of nodes are not those of the arrays"
    inner, limits = left >= 0, torch.tensor(layout.categories)[split.clamp(0, layout.width - 1)]
    splits_categories = inner & (limits > 0)
    checks: Iterable[tuple[Tensor, str]] = (
        ((left >= -1) & (right >= -1) & ((right >= 0) == inner), "a node has one child, or one below the first node"),
        ((split >= 0) & (split < layout.width), "a node splits a feature that does not exist"),
        (arrays["split_type"].bool() == splits_categories, "a node splits numbers as categories, or the reverse"),
        ((arrays["split_type"] <= 1) & (arrays["default_left"] <= 1), "a flag is neither 0 nor 1"),
        ((sizes > 0) == splits_categories, "a node's number of categories does not go with its split"),
        ((sizes >= 0) & (sizes <= limits), "a node has more categories than its feature, or less than none"),
        (torch.stack([arrays[name].isfinite() for name in _FLOATS]), "a number of a node is not finite"),
        (base_score.isfinite(), "a base score is not finite"),
        (
            (base_score > 0) & (base_score < 1) | (layout.task not in ("binary", "multilabel")),
            "no probability",
        ),
    )
    for good, fault in checks:
        if not good.all():
            return fault
    if int(sizes.sum()) != len(categories):
        return "the nodes' numbers of categories are not those of the array"
    if ((categories < 0) | (categories >= torch.repeat_interleave(limits, sizes))).any():
        return "a node splits a category that its feature does not have"
    return _find_loop(nodes, left, right, inner)


def _find_loop(nodes: Tensor, left: Tensor, right: Tensor, inner: Tensor) -> str | None:
    """Describe the first reason why children and parents form no trees."""
    roots = nodes.cumsum(0) - nodes
    first = torch.repeat_interleave(roots, nodes)
    places = torch.arange(len(left))
    left, right = first + left, first + right
    end = first + torch.repeat_interleave(nodes, nodes)
    for child in (left, right):
        if not ((child > places) & (child < end) | ~inner).all():
            return "a child stands before its parent, or in another tree"
    parents = torch.bincount(torch.cat([left[inner], right[inner], roots]), minlength=len(left))
    if not (parents == 1).all():
        return "a node is reached twice, or never"
    level = roots
    for _ in range(MAX_DEPTH + 1):
        level = level[inner[level]]
        level = torch.cat([left[level], right[level]])
    return f"a tree is more than {MAX_DEPTH} deep" if len(level) else None


def write_booster(arrays: Mapping[str, Tensor], layout: Layout) -> bytes:
    """Write checked arrays as the JSON that XGBoost reads.

    The numbers are float32 written with as many digits as float64 has, which every parser reads as they were.
    """
    sizes = arrays["num_nodes"].tolist()
    columns = {name: [part.tolist() for part in torch.split(arrays[name], sizes)] for name in _OF_NODES}
    categories, start = arrays["categories"].tolist(), 0
    trees = []
    for number, num_nodes in enumerate(sizes):
        tree: dict[str, Any] = {name: parts[number] for name, parts in columns.items()}
        tree["parents"] = [NO_PARENT] * num_nodes
        for node, (left, right) in enumerate(zip(tree["left_children"], tree["right_children"], strict=True)):
            if left >= 0:
                tree["parents"][left] = tree["parents"][right] = node
        each = tree["categories_sizes"]
        tree["categories_nodes"] = [node for node, size in enumerate(each) if size]
        tree["categories_sizes"] = [size for size in each if size]
        tree["categories_segments"] = list(accumulate(tree["categories_sizes"], initial=0))[:-1]
        tree["categories"] = categories[start : start + sum(each)]
        start += sum(each)
        tree["id"] = number
        tree["tree_param"] = _to_text(num_deleted=0, num_feature=layout.width, num_nodes=num_nodes, size_leaf_vector=1)
        trees.append(tree)
    return json.dumps(_describe(trees, arrays["base_score"].tolist(), layout)).encode()


def write_margins(arrays: Mapping[str, Tensor], layout: Layout) -> list[bytes]:
    """Write checked arrays as a regression of margins for each output: nvForest reads no model of several.

    It would make probabilities of a classification's margins. They differ from XGBoost's by rounding where they start
    from a probability.
    """
    base_score = arrays["base_score"]
    if layout.task in ("binary", "multilabel"):
        base_score = torch.logit(base_score)
    single = replace(layout, outputs=1, task="regression", quantiles=())
    trees = torch.arange(len(arrays["num_nodes"])) % layout.outputs  # the output of each
    nodes = torch.repeat_interleave(trees, arrays["num_nodes"])
    outputs = {**dict.fromkeys(_OF_NODES, nodes), "num_nodes": trees, "base_score": torch.arange(layout.outputs)}
    outputs["categories"] = torch.repeat_interleave(nodes, arrays["categories_sizes"])
    arrays = {**arrays, "base_score": base_score}
    return [
        write_booster({name: arrays[name][numbers == output] for name, numbers in outputs.items()}, single)
        for output in range(layout.outputs)
    ]


def copy_margins(predictions: Sequence[Any], device: torch.device) -> Tensor:
    """Copy margins from CuPy's memory, side by side: what it frees may be taken before torch's stream has read it."""
    margins = torch.cat([from_dlpack(each) for each in predictions], dim=-1)
    torch.cuda.default_stream(device).wait_stream(torch.cuda.current_stream(device))  # CuPy frees in the order of that
    return margins


def _describe(trees: list[dict[str, Any]], base_score: list[float], layout: Layout) -> dict[str, Any]:
    """Return XGBoost's description of a model around its trees."""
    outputs = layout.outputs
    several_classes = layout.task == "multiclass"
    if several_classes:
        loss = {"softmax_multiclass_param": _to_text(num_class=outputs)}
    elif layout.quantiles:
        loss = {"quantile_loss_param": {"quantile_alpha": json.dumps(layout.quantiles)}}
    else:
        loss = {"reg_loss_param": _to_text(scale_pos_weight=1)}
    model = {
        "trees": trees,
        "tree_info": [number % outputs for number in range(len(trees))],
        "iteration_indptr": list(range(0, len(trees) + 1, outputs)),
        "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
        "gbtree_model_param": _to_text(num_parallel_tree=1, num_trees=len(trees)),
    }
    parameters = {
        "base_score": json.dumps(base_score),
        **_to_text(
            boost_from_average=1,
            num_class=outputs if several_classes else 0,
            num_feature=layout.width,
            num_target=1 if several_classes else outputs,
        ),
    }
    learner = {
        "attributes": {},
        "feature_names": [],
        "feature_types": layout.feature_types,
        "objective": {"name": layout.objective, **loss},
        "learner_model_param": parameters,
        "gradient_booster": {"name": "gbtree", "model": model},
    }
    return {"version": [3, 1, 0], "learner": learner}


def _to_text(**numbers: int) -> dict[str, str]:
    return {name: str(number) for name, number in numbers.items()}
