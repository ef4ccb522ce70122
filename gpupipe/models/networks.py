"""Networks over batches, and their embeddings: one table for all ids; vectors of numbers by bins or waves.

Shapes: B rows, F numbers, C columns of ids, L lists of ids, D the embedding's width, K outputs, T bins or frequencies.
An embedding gives each number corners where its values are, or waves of learned length (Gorishniy et al. 2022,
arXiv:2203.05556).
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from inspect import signature
from typing import Any, ClassVar, Literal, Self, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpupipe.errors import BadConfig, SchemaMismatch, nearest
from gpupipe.schema import Schema
from gpupipe.support import validation
from gpupipe.support.validation import check_integer, check_integers, is_integer, is_number, refuse_argument
from gpupipe.tensors.batch import Batch, Ragged
from gpupipe.tensors.order import Permutation

BAGS = ("mean", "sum", "max")
RESERVED = 2  # ids 0 (missing) and 1 (unknown), in every column
_MAX_AUTO_DIM = 32
SAMPLE_ROWS = 1 << 18  # enough for quantiles, and few enough to sort at once


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
        self._places = {name: place for place, name in enumerate(lists, len(cardinalities))}
        cardinalities = [*cardinalities, *lists.values()]
        *starts, num_rows = itertools.accumulate(cardinalities, initial=0)
        if isinstance(dim, str):
            dim = math.ceil(min(_MAX_AUTO_DIM, 1.6 * math.pow(max(cardinalities), 0.56)) / 4) * 4
        self.dim, self.num_columns = dim, len(cardinalities)
        self.sparse = False  # as nn.Embedding's: whether the table's gradient is of the rows looked up only
        self.table = nn.Parameter(torch.empty(num_rows, dim, device="cpu").normal_(std=dim**-0.5, generator=generator))
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
        known = (ids >= 0) & (ids < self.cardinalities[columns])
        return torch.where(known, ids, 1) + self.starts[columns]


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


@dataclass(frozen=True)
class PiecewiseLinear:
    """Piecewise linear encoding: 1 for the bins below a number, a fraction for its own, 0 for those above.

    Beyond the outer `edges` (for each number its bins', ascending; fewer than two for a constant) the first and the
    last bin go on in a straight line. `dim` is D.
    """

    kind: ClassVar[str] = "piecewise-linear"
    edges: Sequence[Sequence[float]]
    dim: int = 8

    def __post_init__(self) -> None:
        check_integer(self, "[1, inf)", dim=self.dim)
        for each in self.edges if validation.is_sequence(self.edges) else [None]:
            numbers: Any = each if validation.is_sequence(each) else [None]
            if not all(map(is_number, numbers)) or any(a >= b for a, b in itertools.pairwise(numbers)):
                raise refuse_argument(self, "edges", self.edges, "ascending edges for each number", "fit(loader)")

    @classmethod
    def fit(cls, loader: Any, *, bins: int = 48, dim: int = 8) -> Self:
        """Compute the edges of at most `bins` bins at quantiles of a loader's numbers, values that occur.

        Raises `BadConfig`: a loader without a resident table, or fewer than one bin.
        Memory: a sample of at most 262,144 rows in float64, of one number at a time; the edges on the host.
        """
        table = getattr(loader, "table", None)
        if table is None or bins < 1:
            got = type(loader).__name__ if table is None else bins
            problem = "no rows to take quantiles of" if table is None else "no bins"
            expected = "a loader with a resident table, and at least one bin"
            remedy = "PiecewiseLinear.fit(pipeline.loader(train))"
            raise BadConfig("PiecewiseLinear.fit", problem, got=got, expected=expected, remedy=remedy)
        numbers: Tensor = table.numeric
        if len(numbers) == 0:
            return cls([[] for _ in range(numbers.shape[1])], dim)
        if len(numbers) > SAMPLE_ROWS:
            places = torch.arange(SAMPLE_ROWS, device=numbers.device)
            numbers = numbers[Permutation(len(numbers)).at(places)]
        shares = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=numbers.device)
        found = [column.double().quantile(shares, interpolation="lower").float().unique() for column in numbers.T]
        return cls([each.tolist() for each in found], dim)

    def build(self, num_features: int, generator: torch.Generator) -> NumericEmbedding:
        """Build the layer; raise `BadConfig` for edges of another number of features."""
        if len(self.edges) != num_features:
            where, problem = "PiecewiseLinear(edges=)", "edges for another number of features than the model has"
            remedy = "PiecewiseLinear.fit(loader) with the pipeline that makes the batches"
            raise BadConfig(where, problem, got=len(self.edges), expected=str(num_features), remedy=remedy)
        return _Bins(num_features, self, generator)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return {"kind": self.kind, "edges": [[float(edge) for edge in each] for each in self.edges], "dim": self.dim}


Numbers: TypeAlias = Periodic | PiecewiseLinear


def parse_numbers(given: Any) -> Numbers | None:
    """Return the settings, given themselves or the result of `to_json`; else raise `BadConfig`."""
    if given is None or isinstance(given, Periodic | PiecewiseLinear):
        return given
    settings = {str(name): value for name, value in given.items()} if isinstance(given, Mapping) else {}
    wanted = settings.pop("kind", None)
    for kind in (Periodic, PiecewiseLinear):
        if wanted == kind.kind and set(settings) <= {item.name for item in fields(kind)}:
            return kind(**settings)
    expected = "None, Periodic(...) or PiecewiseLinear.fit(loader)"
    raise refuse_argument("model", "numbers", given, expected, "numbers=Periodic()")


class _Waves(NumericEmbedding):
    def __init__(self, num_features: int, settings: Periodic, generator: torch.Generator) -> None:
        super().__init__(num_features, 2 * settings.frequencies, settings.dim, generator)
        start, sigma = torch.empty(num_features, settings.frequencies, device="cpu"), settings.sigma
        # Cut off at three deviations, as in the authors' package: one fast wave is noise from the start.
        nn.init.trunc_normal_(start, std=sigma, a=-3 * sigma, b=3 * sigma, generator=generator)
        self.frequencies = nn.Parameter(start)

    def encode(self, numbers: Tensor) -> Tensor:
        angles = 2 * math.pi * self.frequencies * numbers.unsqueeze(-1)
        return torch.cat([angles.cos(), angles.sin()], -1)


class _Bins(NumericEmbedding):
    bins: Tensor
    """Of each number's bins the lower edge, 1 / width, and the least and the largest value: 4 x F x T."""

    def __init__(self, num_features: int, settings: PiecewiseLinear, generator: torch.Generator) -> None:
        counts = [max(len(each) - 1, 0) for each in settings.edges]
        width = max(counts, default=0)
        super().__init__(num_features, width, settings.dim, generator)
        # A number of fewer bins has empty ones behind its own: (x - 0) * 0 = 0, clamped to 0.
        bins = torch.zeros(4, num_features, width, dtype=torch.float64, device="cpu")
        lower, inverse, least, most = bins
        for row, (each, count) in enumerate(zip(settings.edges, counts, strict=True)):
            if count:
                edges = torch.tensor(each, dtype=torch.float64, device="cpu")
                lower[row, :count], inverse[row, :count], most[row, :count] = edges[:-1], 1 / edges.diff(), 1
                least[row, 0], most[row, count - 1] = -math.inf, math.inf
        self.register_buffer("bins", bins.float(), persistent=False)

    def encode(self, numbers: Tensor) -> Tensor:
        lower, inverse, least, most = self.bins
        shares = (numbers.unsqueeze(-1) - lower) * inverse
        return torch.minimum(torch.maximum(shares, least), most)


_WIDTHS = ("hidden", "head")


class Tabular(nn.Module):
    """Base class of networks over `Batch`es that remember their arguments.

    `forward` computes B values or logits of one output, else B x K. Weights are drawn on the CPU from the model's own
    generator: the same on every device, and torch's global one is left as it was. It is not kept: it has no copy.
    """

    learning_rate: ClassVar[float] = 3e-3
    """What `Trainer(lr=)` does well with, at batches of some thousand rows and AdamW."""

    def start(self, given: Mapping[str, Any], *, dim: int | None = None) -> torch.Generator:
        """Check and keep a constructor's `locals()`, make embeddings of width `dim`, return the weights' generator."""
        super().__init__()
        given = {name: value for name, value in given.items() if name not in ("self", "__class__")}
        _check(self, given)
        config = {name: _plain(value) for name, value in given.items()}
        config |= {name: [config[name]] for name in _WIDTHS if is_integer(config.get(name))}
        config["lists"] = lists = {name: int(n) for name, n in (config["lists"] or {}).items()}
        generator, cardinalities = torch.Generator("cpu").manual_seed(config["seed"]), config["cardinalities"]
        numbers = parse_numbers(config.get("numbers"))
        self._config = config if numbers is None else config | {"numbers": numbers}
        self.outputs: int = config["outputs"]
        self.num_features: tuple[int, int] = (config["numeric"], len(cardinalities))
        self.embedding: SharedEmbedding | None = None
        self.lists = list(lists)
        if cardinalities or lists:
            dim = config["embedding_dim"] if dim is None else dim
            self.embedding = SharedEmbedding(cardinalities, dim, generator, lists, config["bag"])
        self.numbers: NumericEmbedding | None = None
        if numbers is not None and config["numeric"]:
            self.numbers = numbers.build(config["numeric"], generator)
        return generator

    @classmethod
    def from_schema(cls, schema: Schema, **options: Any) -> Self:
        """Build the network for `pipeline.schema`: its features in; one value out, or one per class or per target.

        Raises `BadConfig`: no schema, no target, a target of one class, a categorical feature without a cardinality, a
        list of what are no ids, or an option the network has not.

        Example:
            >>> from gpupipe.schema import Field, Role
            >>> schema = Schema([Field("x", "float32", role=Role.FEATURE), Field("y", "float32", role=Role.TARGET)])
            >>> MLP.from_schema(schema, hidden=(8,)).get_config()["numeric"]
            1
        """
        make: Callable[..., Self] = cls  # with the arguments of the network, not with those here
        where, given = f"{cls.__name__}.from_schema", cast(Any, schema)
        if not isinstance(given, Schema):
            has_one = isinstance(getattr(given, "schema", None), Schema)
            remedy = f"{where}({type(given).__name__.lower() if has_one else 'pipeline'}.schema)"
            expected = "the schema of a fitted pipeline"
            raise BadConfig(where, "not a schema", got=type(given), expected=expected, remedy=remedy)
        parameters = signature(cls).parameters
        known = [name for name in parameters if name not in ("numeric", "cardinalities", "outputs", "lists")]
        if all(each.kind != each.VAR_KEYWORD for each in parameters.values()):
            for option in [option for option in options if option not in known]:
                near, expected = nearest(option, known), f"some of {', '.join(known)}"
                remedy = f"{where}(schema)" if near is None else f"{near}="
                raise BadConfig(where, "no such option", got=option, expected=expected, remedy=remedy)
        return make(**_sizes(schema, where), **options)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON values: `type(model)(**config)` starts with the same weights."""
        numbers: Numbers | None = self._config.get("numbers")
        return dict(self._config) if numbers is None else self._config | {"numbers": numbers.to_json()}

    def check(self, batch: Batch) -> None:
        """Raise `SchemaMismatch` for a batch of other columns than the model was made for, or of other lists."""
        name = type(self).__name__
        if not hasattr(batch, "numeric"):
            expected = "a gpupipe.Batch, which a loader of gp.Pipeline gives"
            remedy = "trainer.fit(pipeline.loader(train)), or model(gp.Batch(numeric, codes))"
            raise SchemaMismatch(name, "not a batch", got=type(batch), expected=expected, remedy=remedy)
        found = (batch.numeric.shape[1], batch.codes.shape[1])
        if found == self.num_features and self.lists == list(batch.lists):
            return
        got: Any = list(batch.lists)
        problem, expected = "the batch has other lists than the model", str(self.lists)
        if found != self.num_features:
            problem = "the batch has other features than the model"
            got, expected = ("{} numeric and {} categorical columns".format(*n) for n in (found, self.num_features))
        remedy = f"{name}.from_schema(pipeline.schema) with the pipeline that makes the batches"
        raise SchemaMismatch(name, problem, got=got, expected=expected, remedy=remedy)

    def check_schema(self, schema: Schema) -> None:
        """Raise `SchemaMismatch` for a pipeline's output of other features or lists, or of ids beyond the model's."""
        ids = [*self._config["cardinalities"], *self._config["lists"].values()]
        given = [field.cardinality or 0 for field in (*schema.categorical, *schema.lists)]
        same = (len(schema.numeric), len(schema.categorical)) == self.num_features
        same = same and [field.name for field in schema.lists] == self.lists
        if not same or any(found > own for found, own in zip(given, ids, strict=True)):
            name, problem = type(self).__name__, "the model was made for the output of another pipeline"
            got = f"{len(schema.numeric)} numeric features, ids {given}"
            expected = f"{self.num_features[0]} numeric features, ids {ids}"
            remedy = f"{name}.from_schema(pipeline.schema), trained on this pipeline's batches"
            raise SchemaMismatch(name, problem, got=got, expected=expected, remedy=remedy)

    @property
    def num_inputs(self) -> int:
        """The width of `inputs`."""
        numbers = self.num_features[0] * (1 if self.numbers is None else self.numbers.dim)
        return numbers + (0 if self.embedding is None else self.embedding.num_columns * self.embedding.dim)

    def inputs(self, batch: Batch) -> Tensor:
        """Return B x `num_inputs`: the numbers, embedded where configured, then the embedded ids."""
        self.check(batch)
        numbers = batch.numeric if self.numbers is None else self.numbers(batch.numeric).flatten(1)
        return numbers if self.embedding is None else torch.cat([numbers, self.embedding.of(batch).flatten(1)], 1)

    def shaped(self, output: Tensor) -> Tensor:
        """Return B values of one output, else B x K."""
        return output.squeeze(1) if self.outputs == 1 else output


def make_linear(
    inputs: int, outputs: int, generator: torch.Generator, start: Literal["he", "glorot"] = "he", *, gain: float = 1.0
) -> nn.Linear:
    """Make a linear layer whose biases are 0, and whose weights are drawn from `generator`, uniformly.

    "he" draws from +-sqrt(6 / inputs), before a ReLU (He et al. 2015, arXiv:1502.01852); "glorot" from
    +-gain sqrt(6 / (inputs + outputs)) (Glorot & Bengio 2010).
    """
    # By way of the meta device, because nn.Linear's own start would draw from the global generator.
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    if start == "he":
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
    else:
        nn.init.xavier_uniform_(layer.weight, gain=gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def _sizes(schema: Schema, where: str) -> dict[str, Any]:
    """Return the arguments of a network that a schema decides."""
    if schema.target is None:
        expected = "a column with the role target, which decides the number of outputs"
        remedy = "gp.Features(..., target='column')"
        raise BadConfig(where, "the schema has no target", got=schema.names, expected=expected, remedy=remedy)
    classes = schema.target.classes
    if classes is not None and len(classes) < 2:
        where, problem = f"{where}, target {schema.target.name!r}", "there is nothing to tell apart"
        remedy = "fit the pipeline on data that holds more than one"
        raise BadConfig(where, problem, got=classes, expected="at least two classes", remedy=remedy)
    for field in [*schema.categorical, *schema.lists]:
        if field.cardinality is None:
            where, expected = f"{where}, column {field.name!r}", "a cardinality in the schema"
            problem = f"a {field.kind} feature whose number of ids is not known"
            remedy = f"([{field.name!r}], pre.Categorify()); for numbers a model that reads batch.lists"
            raise BadConfig(where, problem, got=field.dtype, expected=expected, remedy=remedy)
    return {
        "numeric": len(schema.numeric),
        "cardinalities": [field.cardinality for field in schema.categorical],
        "outputs": len(classes) if classes is not None and schema.task == "multiclass" else len(schema.targets),
        "lists": {field.name: field.cardinality for field in schema.lists},
    }


def _check(model: Tabular, config: Mapping[str, Any]) -> None:
    """Raise `BadConfig` for an invalid argument of those that all models, or several, have."""
    validation.check_seed(model, seed=config["seed"])
    check_integer(model, "[0, inf)", numeric=config["numeric"])
    check_integers(model, f"[{RESERVED}, inf)", cardinalities=config["cardinalities"])
    check_integer(model, "[1, inf)", outputs=config["outputs"])
    validation.check_instance(model, Mapping, "numbers of ids by the lists' names", None, lists=config["lists"])
    check_integers(model, f"[{RESERVED}, inf)", lists=list((config["lists"] or {}).values()))
    validation.check_choice(model, BAGS, bag=config["bag"])
    check_integer(model, "[1, inf)", "auto", embedding_dim=config.get("embedding_dim", "auto"))
    validation.check_number(model, "[0, 1)", dropout=config.get("dropout", 0))
    for name in _WIDTHS:
        if not is_integer(config.get(name), 1):  # one layer
            check_integers(model, "[1, inf)", **{name: config.get(name, ())})
    if not config["numeric"] and not len(config["cardinalities"]) and not config["lists"]:
        raise refuse_argument(model, "numeric", 0, "a feature, numeric or categorical", "numeric=1")


def _plain(value: Any) -> Any:
    """Return an argument as a JSON value: a number of NumPy's as Python's, several as a list."""
    if validation.is_sequence(value):
        return [_plain(one) for one in value]
    return value.item() if is_number(value) and hasattr(value, "item") else value


class Linear(Tabular):
    """Linear or logistic regression; an id's weight is that of its one-hot column, which is never built.

    All weights start at zero, so the order of rows is the only chance in it. Missing and unknown have a weight each. Of
    a list the `bag` of its ids' weights is added. The other arguments, and the errors, are those of `MLP`.
    Memory: (F + sum(cardinalities) + 1) x K float32; training with AdamW four times that.

    Example:
        >>> Linear(numeric=3, cardinalities=[12, 5])(Batch(torch.zeros(4, 3), torch.ones(4, 2, dtype=torch.int32)))
        tensor([0., 0., 0., 0.], grad_fn=<SqueezeBackward1>)
    """

    learning_rate: ClassVar[float] = 3e-2  # few weights, and from zero: they have far to go

    def __init__(
        self,
        numeric: int,
        cardinalities: Sequence[int] = (),
        outputs: int = 1,
        *,
        seed: int = 0,
        lists: Mapping[str, int] | None = None,
        bag: Literal["mean", "sum", "max"] = "mean",
    ) -> None:
        self.start(locals(), dim=outputs)
        self.weight = nn.Parameter(torch.zeros(numeric, outputs, device="cpu"))
        self.bias = nn.Parameter(torch.zeros(outputs, device="cpu"))
        if self.embedding is not None:
            nn.init.zeros_(self.embedding.table)

    def forward(self, batch: Batch) -> Tensor:
        self.check(batch)
        output = torch.addmm(self.bias, batch.numeric, self.weight)
        if self.embedding is not None:
            output = output + self.embedding.of(batch).sum(1)
        return self.shaped(output)


class MLP(Tabular):
    """Multi-layer perceptron: ReLU layers over the numbers and one embedding table for all ids.

    The table's width is that of fast.ai's rule, its rows of missing and unknown ids start at zero, and an id without a
    row is read as unknown. Weights start as in He et al. 2015 (arXiv:1502.01852), biases at zero.

    Args:
        numeric: F, how many numeric features a batch has.
        cardinalities: C numbers of ids, missing and unknown included (at least 2 each).
        outputs: 1 (B values come out) for a regression and a binary target, else K classes or targets (B x K).
        hidden: the hidden layers' widths, first to last; one number for one layer, empty for a linear model.
        dropout: fraction of hidden values zeroed in training.
        embedding_dim: D, or "auto".
        numbers: how numbers are embedded: `Periodic` or `PiecewiseLinear`; None leaves them unchanged.
        seed: of the generator that draws the weights.
        lists: for each feature that is a list of ids, by name, their number, missing and unknown included.
        bag: how the embedded ids of a list become one vector: by `"mean"`, `"sum"` or `"max"`; zeros for an empty one.

    Raises `BadConfig`: no input at all, or a size that makes no sense.
    Memory: sum(cardinalities) x D float32, and the layers; training with AdamW four times that (all dense).

    Example:
        >>> model = MLP(numeric=3, cardinalities=[12, 5], hidden=(16,), seed=7)
        >>> model(Batch(torch.zeros(4, 3), torch.ones(4, 2, dtype=torch.int32))).shape
        torch.Size([4])
    """

    def __init__(
        self,
        numeric: int,
        cardinalities: Sequence[int] = (),
        outputs: int = 1,
        *,
        hidden: int | Sequence[int] = (256, 128),
        dropout: float = 0.0,
        embedding_dim: int | Literal["auto"] = "auto",
        numbers: Numbers | Mapping[str, Any] | None = None,
        seed: int = 0,
        lists: Mapping[str, int] | None = None,
        bag: Literal["mean", "sum", "max"] = "mean",
    ) -> None:
        generator = self.start(locals())
        self.layers, width = _make_relu_layers(self.num_inputs, self._config["hidden"], dropout, generator)
        self.layers.append(make_linear(width, outputs, generator))

    def forward(self, batch: Batch) -> Tensor:
        return self.shaped(self.layers(self.inputs(batch)))


class DCNv2(Tabular):
    """Deep and cross network: layers that multiply features with each other, and the layers of an `MLP`.

    Version 2, of Wang et al. 2021 (arXiv:2008.13535). "parallel" puts both over the inputs and predicts from both
    outputs; "stacked" puts the second over the first. The other arguments, and the errors, are those of `MLP`.

    Args:
        crosses: how many cross layers; the n-th knows products of n + 1 features.
        rank: of the cross layers' matrices; None for full matrices.
        hidden: the widths of the other layers; empty for cross layers alone.

    Memory: as `MLP`, and for inputs of width d: `crosses` x d^2 float32, or 2 x `crosses` x d x `rank`.

    Example:
        >>> DCNv2(numeric=3, hidden=(16,), seed=7)(Batch(torch.zeros(4, 3), torch.ones(4, 0).int())).shape
        torch.Size([4])
    """

    def __init__(
        self,
        numeric: int,
        cardinalities: Sequence[int] = (),
        outputs: int = 1,
        *,
        crosses: int = 2,
        rank: int | None = None,
        hidden: int | Sequence[int] = (256, 128),
        structure: Literal["parallel", "stacked"] = "parallel",
        dropout: float = 0.0,
        embedding_dim: int | Literal["auto"] = "auto",
        numbers: Numbers | Mapping[str, Any] | None = None,
        seed: int = 0,
        lists: Mapping[str, int] | None = None,
        bag: Literal["mean", "sum", "max"] = "mean",
    ) -> None:
        check_integer(self, "[0, inf)", crosses=crosses)
        check_integer(self, "[1, inf)", None, rank=rank)
        validation.check_choice(self, ("parallel", "stacked"), structure=structure)
        generator = self.start(locals())
        self.parallel = structure == "parallel"
        self.crosses = nn.ModuleList(Cross(self.num_inputs, rank, generator) for _ in range(crosses))
        self.layers, width = _make_relu_layers(self.num_inputs, self._config["hidden"], dropout, generator)
        self.last = make_linear(width + self.num_inputs if self.parallel else width, outputs, generator, "glorot")

    def forward(self, batch: Batch) -> Tensor:
        first = crossed = self.inputs(batch)
        for cross in self.crosses:
            crossed = cross(first, crossed)
        deep = self.layers(first if self.parallel else crossed)
        return self.shaped(self.last(torch.cat([crossed, deep], 1) if self.parallel else deep))


class Cross(nn.Module):
    """Cross layer x0 * (W x + b) + x, elementwise: equation 1 of the paper, W = U V^T with a rank (equation 2)."""

    def __init__(self, width: int, rank: int | None, generator: torch.Generator) -> None:
        super().__init__()
        self.narrow: nn.Linear | None = None
        if rank is not None:
            self.narrow = make_linear(width, rank, generator, "glorot")
            self.narrow.bias = None  # type: ignore[assignment]  # V has none
        self.widen = make_linear(width if rank is None else rank, width, generator, "glorot")

    def forward(self, first: Tensor, values: Tensor) -> Tensor:
        """Compute B x d from two B x d."""
        narrow = values if self.narrow is None else self.narrow(values)
        crossed: Tensor = torch.addcmul(values, first, self.widen(narrow))
        return crossed


class ResNet(Tabular):
    """ResNet for tables: a linear layer, residual blocks, and a prediction from their sum.

    block(x) = x + linear(dropout(relu(linear(norm(x))))), prediction(x) = linear(relu(norm(x))), norm being batch
    normalisation (Gorishniy et al. 2021, arXiv:2106.11959, section 3.2), in which rows count whatever their weight. The
    other arguments, and the errors, are those of `MLP`.

    Args:
        width: of the values that each of the `blocks` adds to.
        hidden_factor: a block's inner layer is so many times as wide.
        dropout: fraction of a block's inner values zeroed in training.

    Memory: as `MLP`; 2 x `width`^2 x `hidden_factor` float32 a block.

    Example:
        >>> ResNet(numeric=3, blocks=1, width=8, seed=7)(Batch(torch.zeros(4, 3), torch.ones(4, 0).int())).shape
        torch.Size([4])
    """

    def __init__(
        self,
        numeric: int,
        cardinalities: Sequence[int] = (),
        outputs: int = 1,
        *,
        blocks: int = 2,
        width: int = 192,
        hidden_factor: float = 2.0,
        dropout: float = 0.1,
        embedding_dim: int | Literal["auto"] = "auto",
        numbers: Numbers | Mapping[str, Any] | None = None,
        seed: int = 0,
        lists: Mapping[str, int] | None = None,
        bag: Literal["mean", "sum", "max"] = "mean",
    ) -> None:
        check_integer(self, "[0, inf)", blocks=blocks)
        check_integer(self, "[1, inf)", width=width)
        validation.check_number(self, f"[{1 / width}, 1024]", hidden_factor=hidden_factor)  # one inner value at least
        generator = self.start(locals())
        inner = int(width * hidden_factor)
        self.first = make_linear(self.num_inputs, width, generator, "glorot")
        self.blocks = nn.ModuleList(_Block(width, inner, dropout, generator) for _ in range(blocks))
        self.norm, self.last = BatchNorm(width), make_linear(width, outputs, generator, "glorot")

    def forward(self, batch: Batch) -> Tensor:
        values = self.first(self.inputs(batch))
        for block in self.blocks:
            values = values + block(values)
        return self.shaped(self.last(self.norm(values).relu()))


class BatchNorm(nn.BatchNorm1d):
    """Batch normalization (Ioffe & Szegedy 2015, arXiv:1502.03167); one row is normalised as in evaluation."""

    def forward(self, values: Tensor) -> Tensor:
        if self.training and len(values) < 2:
            return F.batch_norm(values, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(values)


class _Block(nn.Module):
    def __init__(self, width: int, inner: int, dropout: float, generator: torch.Generator) -> None:
        super().__init__()
        self.norm = BatchNorm(width)
        self.enter = make_linear(width, inner, generator)
        self.leave, self.dropout = make_linear(inner, width, generator, "glorot"), nn.Dropout(dropout)

    def forward(self, values: Tensor) -> Tensor:
        change: Tensor = self.leave(self.dropout(self.enter(self.norm(values)).relu()))
        return change


class MultiTask(Tabular):
    """Multi-task network: an `MLP`'s layers for all targets, then a head for each (Caruana 1997).

    What each output means is the loss' business: `gp.Trainer(loss=gp.training.PerTarget(...))` takes one loss a
    target. The other arguments, and the errors, are those of `MLP`.

    Args:
        outputs: T, one a target; T = 1 gives B values, else B x T.
        hidden: the shared layers' widths, first to last.
        head: the widths of each head's own layers; empty for one linear layer a head.

    Memory: as `MLP`, and the heads' layers T times.

    Example:
        >>> MultiTask(numeric=3, outputs=2, head=(8,), seed=7)(Batch(torch.zeros(4, 3), torch.zeros(4, 0).int())).shape
        torch.Size([4, 2])
    """

    def __init__(
        self,
        numeric: int,
        cardinalities: Sequence[int] = (),
        outputs: int = 1,
        *,
        hidden: int | Sequence[int] = (256, 128),
        head: int | Sequence[int] = (64,),
        dropout: float = 0.0,
        embedding_dim: int | Literal["auto"] = "auto",
        numbers: Numbers | Mapping[str, Any] | None = None,
        seed: int = 0,
        lists: Mapping[str, int] | None = None,
        bag: Literal["mean", "sum", "max"] = "mean",
    ) -> None:
        generator = self.start(locals())
        self.layers, width = _make_relu_layers(self.num_inputs, self._config["hidden"], dropout, generator)
        widths = itertools.pairwise([width, *self._config["head"], 1])
        self.heads = nn.ModuleList(_Heads(outputs, before, after, generator) for before, after in widths)

    def forward(self, batch: Batch) -> Tensor:
        shared = self.layers(self.inputs(batch))
        values: Tensor = self.heads[0](shared.expand(self.outputs, -1, -1))
        for layer in list(self.heads)[1:]:
            values = layer(values.relu())
        return self.shaped(values.squeeze(2).T)


class _Heads(nn.Module):
    """Linear layers of T heads at once: T x B x I to T x B x O."""

    def __init__(self, heads: int, inputs: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        bound = math.sqrt(6 / inputs)  # He et al. 2015, as in the shared layers
        start = torch.empty(heads, inputs, outputs, device="cpu").uniform_(-bound, bound, generator=generator)
        self.weight = nn.Parameter(start)
        self.bias = nn.Parameter(torch.zeros(heads, 1, outputs, device="cpu"))

    def forward(self, values: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, values, self.weight)


class FTTransformer(Tabular):
    """FT-Transformer (Gorishniy et al. 2021, arXiv:2106.11959): transformer blocks mix tokens, one a feature.

    [CLS] predicts. A number's token is bias + x * weight, an id's bias + its row of the shared embedding (section 3.3).
    Blocks normalise first, but for the first attention, which does not (appendix E.1); the feed-forward part is ReGLU.
    The last block computes [CLS] alone, since nothing else of it is used. Costs grow with (F + C)^2; the defaults are
    smaller than the authors' (3 blocks of 192). The other arguments, and the errors, are those of `MLP`.

    Args:
        dim: a token's width.
        heads: of the attention; divides `dim`.
        attention_dropout, dropout: fractions of attention weights, and of the feed-forward part's hidden values, zeroed
            in training.

    Memory: sum(cardinalities) x `dim` float32 for the embedding, about 8 x `dim`^2 a block; training with AdamW four
        times that, and for each row some 20 x `blocks` x (F + C) x `dim` values of activations.

    Example:
        >>> FTTransformer(numeric=3, dim=8, heads=2, seed=7)(Batch(torch.zeros(4, 3), torch.ones(4, 0).int())).shape
        torch.Size([4])
    """

    learning_rate: ClassVar[float] = 6e-3  # narrow tokens: with 3e-3 it is still far from done after a dozen epochs

    def __init__(
        self,
        numeric: int,
        cardinalities: Sequence[int] = (),
        outputs: int = 1,
        *,
        blocks: int = 2,
        dim: int = 32,
        heads: int = 4,
        attention_dropout: float = 0.0,
        dropout: float = 0.0,
        seed: int = 0,
        lists: Mapping[str, int] | None = None,
        bag: Literal["mean", "sum", "max"] = "mean",
    ) -> None:
        check_integer(self, "[1, inf)", blocks=blocks, dim=dim, heads=heads)
        validation.check_number(self, "[0, 1)", attention_dropout=attention_dropout)
        if dim % heads:
            raise refuse_argument(self, "heads", heads, f"a divisor of dim={dim}", f"heads={math.gcd(dim, heads)}")
        generator = self.start(locals(), dim=dim)
        columns = sum(self.num_features) + len(self.lists)
        self.weight, self.bias, self.cls = (
            nn.Parameter(torch.empty(rows, dim, device="cpu").uniform_(-(dim**-0.5), dim**-0.5, generator=generator))
            for rows in (numeric, columns, 1)  # as in the authors' code
        )
        self.blocks = nn.ModuleList()
        for number in range(blocks):
            attention = Attention(dim, heads, attention_dropout, generator)
            ends = {"first": number == 0, "last": number == blocks - 1}
            self.blocks.append(_TokenBlock(dim, attention, dropout, generator, **ends))
        self.norm, self.last = nn.LayerNorm(dim), make_linear(dim, outputs, generator, "glorot")

    def no_weight_decay(self) -> set[str]:
        """Return the names of the token parameters, which decay as little as embeddings do, as in the paper."""
        return {"weight", "bias", "cls"}

    def tokens(self, batch: Batch) -> Tensor:
        """Compute B x (1 + F + C) x `dim`: [CLS], the numbers', the ids'."""
        self.check(batch)
        features = batch.numeric.unsqueeze(-1) * self.weight
        if self.embedding is not None:
            features = torch.cat([features, self.embedding.of(batch)], 1)
        features = features + self.bias
        return torch.cat([self.cls.expand(features.shape[0], -1, -1), features], 1)

    def forward(self, batch: Batch) -> Tensor:
        tokens = self.tokens(batch)
        for block in self.blocks:
            tokens = block(tokens)
        return self.shaped(self.last(self.norm(tokens[:, 0]).relu()))


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, arXiv:1706.03762) of some tokens over all, by torch's kernels."""

    def __init__(self, dim: int, heads: int, dropout: float, generator: torch.Generator) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        # The gain is that of the authors' code, which takes the three for one matrix of two halves.
        self.query, self.key, self.value = (make_linear(dim, dim, generator, "glorot", gain=0.5**0.5) for _ in range(3))
        self.out = make_linear(dim, dim, generator, "glorot")

    def forward(self, asking: Tensor, tokens: Tensor) -> Tensor:
        """Compute B x Q x `dim` from B x Q x `dim` and B x S x `dim`."""
        query, key, value = (
            layer(values).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, values in ((self.query, asking), (self.key, tokens), (self.value, tokens))
        )
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout if self.training else 0.0)
        answer: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return answer


class _TokenBlock(nn.Module):
    def __init__(
        self, dim: int, attention: Attention, dropout: float, generator: torch.Generator, *, first: bool, last: bool
    ) -> None:
        super().__init__()
        self.last = last
        self.before_attention = nn.Identity() if first else nn.LayerNorm(dim)
        self.attention = attention
        self.before_layers = nn.LayerNorm(dim)
        # As in the paper: ReGLU halves, so 4 / 3 costs as many weights as a plain layer of 8 / 3.
        hidden = max(int(dim * 4 / 3), 1)
        self.enter = make_linear(dim, 2 * hidden, generator)
        self.leave, self.dropout = make_linear(hidden, dim, generator, "glorot"), nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        normal = self.before_attention(tokens)
        asking = slice(0, 1) if self.last else slice(None)
        tokens = tokens[:, asking] + self.attention(normal[:, asking], normal)
        values, gate = self.enter(self.before_layers(tokens)).chunk(2, -1)
        changed: Tensor = tokens + self.leave(self.dropout(values * gate.relu()))
        return changed


def _make_relu_layers(
    inputs: int, hidden: Sequence[int], dropout: float, generator: torch.Generator
) -> tuple[nn.Sequential, int]:
    """Return Linear, ReLU and dropout for each hidden width, and the width at their end."""
    layers: list[nn.Module] = []
    for width, following in itertools.pairwise([inputs, *hidden]):
        layers += [make_linear(width, following, generator), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers), [inputs, *hidden][-1]
