"""Embeddings of ids (one table for all columns) and of numbers (vectors by bins or waves).

Shapes: B rows, F numbers, C columns of ids, L lists of ids, D the embedding's width, T bins or frequencies.
An embedding gives each number corners where its values are, or waves of learned length (Gorishniy et al. 2022,
arXiv:2203.05556).
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpupipe.errors import BadConfig
from gpupipe.schema import Schema
from gpupipe.support import validation
from gpupipe.support.calls import answer_calls
from gpupipe.support.validation import check_integer, is_number, refuse_argument
from gpupipe.tensors.batch import Batch, Ragged

BAGS = ("mean", "sum", "max")
RESERVED = 2  # ids 0 (missing) and 1 (unknown), in every column
_MAX_AUTO_DIM = 32
_START = 0.01  # deviation of an id's first values: near zero, for what is rare to stay there


class SharedEmbedding(nn.Module):
    """Embedding table of width D for all C columns: a batch needs one lookup whatever C is.

    `dim="auto"` is the width fast.ai's rule gives for the largest cardinality n (fastai.tabular.model.emb_sz_rule), 1.6
    n^0.56, but at most 32 and a multiple of 4. The rows of missing (0) and unknown (1) start at zero, so what was never
    met in training adds nothing. An id the column has no row for is read as unknown, on the device.

    The rows of L columns of lists (their numbers of ids by name) follow them: of each list the rows of its elements are
    put together into one, by `bag`; zeros without any. Memory: sum(cardinalities) x D float32.
    """

    cardinalities: Tensor
    starts: Tensor

    def __init__(
        self,
        cardinalities: Sequence[int],
        dim: int | str,
        generator: torch.Generator,
        lists: Mapping[str, int] | None = None,
        bag: str = "mean",
    ) -> None:
        super().__init__()
        lists = lists or {}
        self.mode, self._num_codes = bag, len(cardinalities)
        self._places = {name: index for index, name in enumerate(lists, len(cardinalities))}
        cardinalities = [*cardinalities, *lists.values()]
        *starts, num_rows = itertools.accumulate(cardinalities, initial=0)
        if isinstance(dim, str):
            dim = math.ceil(min(_MAX_AUTO_DIM, 1.6 * math.pow(max(cardinalities), 0.56)) / 4) * 4
        self.dim, self.num_columns = dim, len(cardinalities)
        self.sparse = False  # as nn.Embedding's: whether the table's gradient is of the rows looked up only
        self.table = nn.Parameter(torch.empty(num_rows, dim, device="cpu").normal_(std=_START, generator=generator))
        for start in starts:
            self.table.data[start : start + RESERVED] = 0
        dtype = torch.int32 if num_rows < 2**31 else torch.int64
        for name, values in (("cardinalities", cardinalities), ("starts", starts)):
            self.register_buffer(name, torch.tensor(values, dtype=dtype, device="cpu"), persistent=False)

    def of(self, batch: Batch) -> Tensor:
        """Embed the batch's ids and its lists of ids: B x (C + L) x D."""
        codes: Tensor = self(batch.codes)
        if not self._places:
            return codes
        return torch.cat([codes, *[self.bag(name, batch.lists[name]).unsqueeze(1) for name in self._places]], 1)

    def forward(self, codes: Tensor) -> Tensor:
        """Embed B x C ids to B x C x D."""
        return F.embedding(self._rows(codes, slice(self._num_codes)), self.table, sparse=self.sparse)

    def bag(self, name: str, lists: Ragged) -> Tensor:
        """Embed B lists of ids of that column of lists to B x D."""
        # torch asks for rows and offsets of one type, and knows no sparse gradient of a maximum.
        rows, sparse = self._rows(lists.values, self._places[name]).long(), self.sparse and self.mode != "max"
        return F.embedding_bag(rows, self.table, lists.offsets, mode=self.mode, include_last_offset=True, sparse=sparse)

    def _rows(self, ids: Tensor, columns: slice | int) -> Tensor:
        """Return the table's rows of ids of these columns; unknown for those the column has no row for."""
        valid = (ids >= 0) & (ids < self.cardinalities[columns])
        return torch.where(valid, ids, 1) + self.starts[columns]


class NumericEmbedding(nn.Module):
    """Numeric embedding of B x F numbers to B x F x D: an encoding, then a linear layer and a ReLU per number."""

    def __init__(self, num_features: int, encoded: int, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.dim = dim
        # torch.nn.Linear's own start, uniform in +-1 / sqrt(inputs), as in the authors' code.
        bound = 1 / math.sqrt(max(encoded, 1))
        self.weight, self.bias = (
            nn.Parameter(torch.empty(shape, device="cpu").uniform_(-bound, bound, generator=generator))
            for shape in ((num_features, encoded, dim), (num_features, dim))
        )

    @abstractmethod
    def encode(self, numbers: Tensor) -> Tensor:
        """Encode the numbers: B x F x T."""

    def forward(self, numbers: Tensor) -> Tensor:
        return (torch.einsum("bft,ftd->bfd", self.encode(numbers), self.weight) + self.bias).relu()


@answer_calls
@dataclass(frozen=True)
class Periodic:
    """Periodic embedding: sin(2 pi c x) and cos(2 pi c x) of `frequencies` learned c, a linear layer and a ReLU.

    For standardised numbers. `dim` is D. The c start normal with standard deviation `sigma`, the choice that matters
    most (0.01 to 1). The defaults are those of the authors' package.
    """

    kind: ClassVar[str] = "periodic"
    dim: int = 24
    frequencies: int = 48
    sigma: float = 0.01

    def __post_init__(self) -> None:
        check_integer(self, "[1, inf)", dim=self.dim, frequencies=self.frequencies)
        validation.check_number(self, "(0, inf)", sigma=self.sigma)

    def build(self, num_features: int, generator: torch.Generator) -> NumericEmbedding:
        """Build the layer."""
        return _Waves(num_features, self, generator)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return {"kind": self.kind, **{name: validation.to_python(value) for name, value in asdict(self).items()}}


@answer_calls
@dataclass(frozen=True)
class PiecewiseLinear:
    """Piecewise linear encoding: 1 for the bins below a number, a fraction for its own, 0 for those above.

    `edges` are for each number its bins', ascending; fewer than two for a constant, and None for one that goes in as it
    is. A number beyond the outer ones counts as the nearest of them, as for trees; the paper has a straight line there,
    of a bin as narrow as a year in fifty, and years after those of the fit took predictions far away. `dim` is D.

    With `linear`, for a target that is a number, a vector begins as a straight line of the number itself, between the
    outer edges: the bins' weights start at zero, and no ReLU follows (version B of the authors' package). Of sales of
    10, 12 and 9,000 the last alone fills the last bin, which from its few rows would have to learn most of the line.
    """

    kind: ClassVar[str] = "piecewise-linear"
    edges: Sequence[Sequence[float] | None]
    dim: int = 16
    linear: bool = False

    def __post_init__(self) -> None:
        check_integer(self, "[1, inf)", dim=self.dim)
        validation.check_bool(self, linear=self.linear)
        if not validation.is_sequence(self.edges) or not all(each is None or _ascend(each) for each in self.edges):
            remedy = "PiecewiseLinear.from_schema(pipeline.schema)"
            raise refuse_argument(self, "edges", self.edges, "ascending edges for each number", remedy)

    @classmethod
    def from_schema(cls, schema: Schema, *, dim: int = 16) -> Self:
        """Take the edges that a pipeline's fit computed for its numeric features (see `Schema.edges`).

        A feature without edges (of a list, or of a pipeline with more than 256 numbers) goes in as it is. Vectors are
        linear at first for a regression.
        """
        return cls([schema.edges.get(item.name) for item in schema.numeric], dim, schema.task == "regression")

    def build(self, num_features: int, generator: torch.Generator) -> NumericEmbedding:
        """Build the layer; raise `BadConfig` for edges of another number of features."""
        if len(self.edges) != num_features:
            where, problem = "PiecewiseLinear(edges=)", "edges for another number of features than the model has"
            remedy = "PiecewiseLinear.from_schema(pipeline.schema) of the pipeline that makes the batches"
            raise BadConfig(where, problem, got=len(self.edges), expected=str(num_features), remedy=remedy)
        return _Bins(num_features, self, generator)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        edges = [None if each is None else [float(edge) for edge in each] for each in self.edges]
        return {"kind": self.kind, "edges": edges, "dim": int(self.dim), "linear": bool(self.linear)}


def _ascend(edges: Any) -> bool:
    is_numbers = validation.is_sequence(edges) and all(map(is_number, edges))
    return is_numbers and all(low < high for low, high in itertools.pairwise(edges))


Numbers: TypeAlias = Periodic | PiecewiseLinear


def parse_numbers(argument: Any) -> Numbers | None:
    """Return the settings, given themselves or the result of `to_json`; else raise `BadConfig`."""
    if argument is None or isinstance(argument, Periodic | PiecewiseLinear):
        return argument
    settings = {str(name): value for name, value in argument.items()} if isinstance(argument, Mapping) else {}
    kind_name = settings.pop("kind", None)
    for kind in (Periodic, PiecewiseLinear):
        if kind_name == kind.kind and set(settings) <= {item.name for item in fields(kind)}:
            return kind(**settings)
    expected = "None, Periodic(...) or PiecewiseLinear.from_schema(schema)"
    raise refuse_argument("model", "numbers", argument, expected, "numbers=Periodic()")


class _Waves(NumericEmbedding):
    def __init__(self, num_features: int, settings: Periodic, generator: torch.Generator) -> None:
        super().__init__(num_features, 2 * settings.frequencies, settings.dim, generator)
        start, sigma = torch.empty(num_features, settings.frequencies, device="cpu"), float(settings.sigma)
        # Cut off at three deviations, as in the authors' package: one fast wave is noise from the start.
        nn.init.trunc_normal_(start, std=sigma, a=-3 * sigma, b=3 * sigma, generator=generator)
        self.frequencies = nn.Parameter(start)

    def encode(self, numbers: Tensor) -> Tensor:
        angles = 2 * math.pi * self.frequencies * numbers.unsqueeze(-1)
        return torch.cat([angles.cos(), angles.sin()], -1)


class _Bins(NumericEmbedding):
    bins: Tensor
    """Of each number's bins the lower edge, 1 / width, and the least and the largest value: 4 x F x T."""
    ends: Tensor
    """The outer edges of each number: 2 x F."""

    def __init__(self, num_features: int, settings: PiecewiseLinear, generator: torch.Generator) -> None:
        counts = [1 if each is None else max(len(each) - 1, 0) for each in settings.edges]
        width = max(counts, default=0)
        super().__init__(num_features, width, settings.dim, generator)
        # A number of fewer bins has empty ones behind its own: (x - 0) * 0 = 0, clamped to 0.
        bins = torch.zeros(4, num_features, width, dtype=torch.float64, device="cpu")
        lower, inverse, least, most = bins
        for row, (each, count) in enumerate(zip(settings.edges, counts, strict=True)):
            if each is None:
                inverse[row, 0], least[row, 0], most[row, 0] = 1, -math.inf, math.inf
            elif count:
                edges = torch.tensor(each, dtype=torch.float64, device="cpu")
                lower[row, :count], inverse[row, :count], most[row, :count] = edges[:-1], 1 / edges.diff(), 1
        self.register_buffer("bins", bins.float(), persistent=False)
        self.slopes: nn.Parameter | None = None
        if settings.linear:
            self.weight.data.zero_()
            bound, shape = 1 / math.sqrt(settings.dim), (num_features, settings.dim)
            self.slopes, self.bias = (
                nn.Parameter(torch.empty(shape, device="cpu").uniform_(-bound, bound, generator=generator))
                for _ in range(2)
            )
            ends = [
                (-math.inf, math.inf) if each is None else (each[0], each[-1]) if each else (0, 0)
                for each in settings.edges
            ]
            self.register_buffer(
                "ends", torch.tensor(ends, dtype=torch.float64, device="cpu").float().T, persistent=False
            )

    def forward(self, numbers: Tensor) -> Tensor:
        if self.slopes is None:
            return super().forward(numbers)
        least, most = self.ends
        values = torch.minimum(torch.maximum(numbers, least), most)
        vectors = torch.einsum("bft,ftd->bfd", self.encode(numbers), self.weight)
        return vectors + torch.addcmul(self.bias, values.unsqueeze(-1), self.slopes)

    def encode(self, numbers: Tensor) -> Tensor:
        lower, inverse, least, most = self.bins
        shares = (numbers.unsqueeze(-1) - lower) * inverse
        return torch.minimum(torch.maximum(shares, least), most)
