"""Numeric embeddings: vectors of numbers (Gorishniy, Rubachev & Babenko 2022, arXiv:2203.05556).

A trunk of ReLUs bends a number where a layer's weights happen to put a corner. An embedding of its own gives each
number corners where its values are (`PiecewiseLinear`), or waves of learned length (`Periodic`).
Shapes: B rows, F numbers, T bins or frequencies, D the embedding's width.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self, TypeAlias

import torch
from torch import Tensor, nn

from gpupipe.errors import BadConfig
from gpupipe.support.validation import check_integer, check_number, is_number, is_sequence, refuse_argument
from gpupipe.tensors.order import Permutation

SAMPLE_ROWS = 1 << 18  # enough for quantiles, and few enough to sort at once


class NumericEmbedding(nn.Module):
    """Numeric embedding of B x F numbers to B x F x D: an encoding, then a linear layer and a ReLU per number."""

    def __init__(self, num_features: int, encoded: int, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.dim = dim
        # torch.nn.Linear's own start, uniform in +-1 / sqrt(inputs), as in the authors' code.
        bound = 1 / math.sqrt(max(encoded, 1))
        self.weight = nn.Parameter(_uniform((num_features, encoded, dim), bound, generator))
        self.bias = nn.Parameter(_uniform((num_features, dim), bound, generator))

    @abstractmethod
    def encode(self, numbers: Tensor) -> Tensor:
        """Encode the numbers: B x F x T."""

    def forward(self, numbers: Tensor) -> Tensor:
        return (torch.einsum("bft,ftd->bfd", self.encode(numbers), self.weight) + self.bias).relu()


@dataclass(frozen=True)
class Periodic:
    """Periodic embedding: sin(2 pi c x) and cos(2 pi c x) of `frequencies` learned c, a linear layer and a ReLU.

    For standardised numbers. The defaults are those of the authors' package.

    Args:
        dim: D.
        frequencies: how many c a number has.
        sigma: the c start normal with this standard deviation; the choice that matters most (0.01 to 1).
    """

    kind: ClassVar[str] = "periodic"
    dim: int = 24
    frequencies: int = 48
    sigma: float = 0.01

    def __post_init__(self) -> None:
        check_integer(self, "[1, inf)", dim=self.dim, frequencies=self.frequencies)
        check_number(self, "(0, inf)", sigma=self.sigma)

    def build(self, num_features: int, generator: torch.Generator) -> NumericEmbedding:
        """Build the layer."""
        return _Waves(num_features, self, generator)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class PiecewiseLinear:
    """Piecewise linear encoding: 1 for the bins below a number, a fraction for its own, 0 for those above.

    Beyond the outer edges the first and the last bin go on in a straight line, so no value is cut off.

    Args:
        edges: for each number its bins' edges, ascending; fewer than two for a constant number.
        dim: D.
    """

    kind: ClassVar[str] = "piecewise-linear"
    edges: Sequence[Sequence[float]]
    dim: int = 8

    def __post_init__(self) -> None:
        check_integer(self, "[1, inf)", dim=self.dim)
        edges: Any = self.edges if is_sequence(self.edges) else [None]
        if not all(
            is_sequence(each) and all(map(is_number, each)) and all(a < b for a, b in itertools.pairwise(each))
            for each in edges
        ):
            raise refuse_argument(self, "edges", self.edges, "ascending edges for each number", "fit(loader)")

    @classmethod
    def fit(cls, loader: Any, *, bins: int = 48, dim: int = 8) -> Self:
        """Compute the edges at quantiles of a loader's numbers, values that occur; equal ones count once.

        Args:
            loader: `pipeline.loader(train)`, whose table is resident.
            bins: at most so many.
            dim: D.

        Raises:
            BadConfig: a loader without a resident table, or fewer than one bin.

        Memory:
            A sample of at most 262,144 rows in float64, of one number at a time; the edges on the host.
        """
        table = getattr(loader, "table", None)
        if table is None or bins < 1:
            raise BadConfig(
                "PiecewiseLinear.fit",
                "no rows to take quantiles of" if table is None else "no bins",
                got=type(loader).__name__ if table is None else bins,
                expected="a loader with a resident table, and at least one bin",
                remedy="PiecewiseLinear.fit(pipeline.loader(train))",
            )
        numbers: Tensor = table.numeric
        if len(numbers) > SAMPLE_ROWS:
            places = torch.arange(SAMPLE_ROWS, device=numbers.device)
            numbers = numbers[Permutation(len(numbers)).at(places)]
        shares = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=numbers.device)
        found = (
            [column.double().quantile(shares, interpolation="lower").float().unique() for column in numbers.T]
            if len(numbers)
            else []
        )
        return cls([each.tolist() for each in found] or [[] for _ in range(numbers.shape[1])], dim)

    def build(self, num_features: int, generator: torch.Generator) -> NumericEmbedding:
        """Build the layer.

        Raises:
            BadConfig: edges for another number of features.
        """
        if len(self.edges) != num_features:
            raise BadConfig(
                "PiecewiseLinear(edges=)",
                "edges for another number of features than the model has",
                got=len(self.edges),
                expected=str(num_features),
                remedy="PiecewiseLinear.fit(loader) with the pipeline that makes the batches",
            )
        return _Bins(num_features, self, generator)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return {"kind": self.kind, "edges": [[float(edge) for edge in each] for each in self.edges], "dim": self.dim}


Numbers: TypeAlias = Periodic | PiecewiseLinear


def parse_numbers(given: Any) -> Numbers | None:
    """Return the settings, given themselves or the result of `to_json`.

    Raises:
        BadConfig: neither.
    """
    if given is None or isinstance(given, Periodic | PiecewiseLinear):
        return given
    kinds: dict[str, type[Numbers]] = {Periodic.kind: Periodic, PiecewiseLinear.kind: PiecewiseLinear}
    settings = {str(name): value for name, value in given.items()} if isinstance(given, Mapping) else {}
    kind = kinds.get(str(settings.pop("kind", "")))
    if kind is None or not set(settings) <= {item.name for item in fields(kind)}:
        expected = "None, Periodic(...) or PiecewiseLinear.fit(loader)"
        raise refuse_argument("model", "numbers", given, expected, "numbers=Periodic()")
    return kind(**settings)


class _Waves(NumericEmbedding):
    def __init__(self, num_features: int, settings: Periodic, generator: torch.Generator) -> None:
        super().__init__(num_features, 2 * settings.frequencies, settings.dim, generator)
        start = torch.empty(num_features, settings.frequencies, device="cpu")
        # Cut off at three deviations, as in the authors' package: one fast wave is noise from the start.
        nn.init.trunc_normal_(
            start, std=settings.sigma, a=-3 * settings.sigma, b=3 * settings.sigma, generator=generator
        )
        self.frequencies = nn.Parameter(start)

    def encode(self, numbers: Tensor) -> Tensor:
        angles = 2 * math.pi * self.frequencies * numbers.unsqueeze(-1)
        return torch.cat([angles.cos(), angles.sin()], -1)


class _Bins(NumericEmbedding):
    lower: Tensor
    inverse: Tensor
    least: Tensor
    most: Tensor

    def __init__(self, num_features: int, settings: PiecewiseLinear, generator: torch.Generator) -> None:
        counts = [max(len(each) - 1, 0) for each in settings.edges]
        width = max(counts, default=0)
        super().__init__(num_features, width, settings.dim, generator)
        # A number of fewer bins has empty ones behind its own: (x - 0) * 0 = 0, clamped to 0.
        lower, inverse, least, most = (
            torch.zeros(num_features, width, dtype=torch.float64, device="cpu") for _ in range(4)
        )
        for row, (each, count) in enumerate(zip(settings.edges, counts, strict=True)):
            if count:
                edges = torch.tensor(each, dtype=torch.float64, device="cpu")
                lower[row, :count] = edges[:-1]
                inverse[row, :count] = 1 / edges.diff()
                most[row, :count] = 1
                least[row, 0], most[row, count - 1] = -math.inf, math.inf
        for name, values in (("lower", lower), ("inverse", inverse), ("least", least), ("most", most)):
            self.register_buffer(name, values.float(), persistent=False)

    def encode(self, numbers: Tensor) -> Tensor:
        shares = (numbers.unsqueeze(-1) - self.lower) * self.inverse
        return torch.minimum(torch.maximum(shares, self.least), self.most)


def _uniform(shape: tuple[int, ...], bound: float, generator: torch.Generator) -> Tensor:
    return torch.empty(shape, device="cpu").uniform_(-bound, bound, generator=generator)
