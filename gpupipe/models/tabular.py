"""Base class of networks over `Batch`es, sized from a schema: their arguments, checks, inputs and layers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from inspect import signature
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from gpupipe.errors import AttributeNotFound, BadConfig, SchemaMismatch
from gpupipe.models.embeddings import (
    BAGS,
    RESERVED,
    Numbers,
    NumericEmbedding,
    PiecewiseLinear,
    SharedEmbedding,
    parse_numbers,
)
from gpupipe.schema import Field, Schema
from gpupipe.support import validation
from gpupipe.support.calls import answer_calls, answer_constructor, find_argument
from gpupipe.support.validation import check_integer, check_integers, is_integer, is_number, refuse_argument
from gpupipe.tensors.batch import Batch

_WIDTHS = ("hidden", "head")
_ELSEWHERE = dict.fromkeys(("fit", "partial_fit"), "gp.Trainer(model).fit(pipeline.loader(train))")
_ELSEWHERE |= {name: f"gp.Scorer(pipeline, model).{name}(data)" for name in ("predict", "predict_proba")}
_ELSEWHERE |= {"score": "gp.Scorer(pipeline, model).evaluate(data)", "save": "gp.save('folder', pipeline, model)"}
MAX_EMBEDDED = 200  # numeric features that `from_schema` embeds: each becomes 16 inputs


class Tabular(nn.Module):
    """Base class of networks over `Batch`es that remember their arguments.

    `forward` computes B values or logits of one output, else B x K. Weights are drawn on the CPU from the model's own
    generator: the same on every device, and torch's global one is left as it was. It is not kept: it has no copy.
    """

    learning_rate: ClassVar[float] = 3e-3
    """What `Trainer(lr=)` does well with, at batches of some hundred rows or more and AdamW."""
    updates: ClassVar[int] = 1200
    """How many updates `Trainer(max_epochs="auto")` makes on a table that does not need more for two epochs."""
    embedding_l2: ClassVar[float] = 300.0
    """L2 penalty of embedded ids, in rows: what fewer rows say of an id moves it little (see `compute_l2`)."""
    params_names: ClassVar[frozenset[str]] = frozenset()
    """What a model's argument `params` may hold, where it has one."""
    _config: dict[str, Any]
    id_keys: Tensor
    """A key for each id of each column, those of lists last: equal keys are equal values of one column; 0 is unknown.

    They go with the weights, because a vocabulary of another fit has the same values in other places.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        answer_constructor(cls)

    if not TYPE_CHECKING:  # for which any name would be one

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeNotFound for scikit-learn's names, with what does the same here."""
            remedy = _ELSEWHERE.get(name)
            if remedy is None:
                return super().__getattr__(name)
            problem, expected = "a network has no such method", "a Trainer to fit it, a Scorer to predict with it"
            raise AttributeNotFound(f"{type(self).__name__}.{name}", problem, expected=expected, remedy=remedy)

    def start(self, arguments: Mapping[str, Any], *, dim: int | Literal["outputs"] | None = None) -> torch.Generator:
        """Check and keep a constructor's `locals()`, make embeddings of width `dim`, return the weights' generator."""
        self.remember(arguments)
        config = self._config
        lists = config["lists"]
        generator, cardinalities = torch.Generator("cpu").manual_seed(config["seed"]), config["cardinalities"]
        numbers = parse_numbers(config.get("numbers"))
        self._config = config if numbers is None else config | {"numbers": numbers}
        self.embedding: SharedEmbedding | None = None
        if cardinalities or lists:
            dim = config["embedding_dim"] if dim is None else self.outputs if dim == "outputs" else dim
            self.embedding = SharedEmbedding(cardinalities, dim, generator, lists, config["bag"])
        self.numbers: NumericEmbedding | None = None
        if numbers is not None and config["numeric"]:
            self.numbers = numbers.build(config["numeric"], generator)
        return generator

    def remember(self, arguments: Mapping[str, Any]) -> None:
        """Check and keep a constructor's `locals()`; it needs nothing else where a model has no weights to draw."""
        super().__init__()
        options = {name: value for name, value in arguments.items() if name not in ("self", "__class__")}
        _check(self, options)
        config = {name: _plain(value) for name, value in options.items()}
        config |= {name: [config[name]] for name in _WIDTHS if is_integer(config.get(name))}
        config["lists"] = {name: int(n) for name, n in (config.get("lists") or {}).items()}
        self.quantiles: tuple[float, ...] | None = None
        if config.get("quantiles") is not None:
            self.quantiles = tuple(config["quantiles"])
            config["outputs"] = len(self.quantiles)
        self._config = config
        self.outputs: int = config["outputs"]
        self.num_features: tuple[int, int] = (config["numeric"], len(config["cardinalities"]))
        self.lists = list(config["lists"])
        self._sizes = [*config["cardinalities"], *config["lists"].values()]
        self.number_names: list[str] = []  # in order, once a schema is known
        self.id_names = [f"column {index} of ids" for index in range(len(self._sizes))]
        self.register_buffer("id_keys", torch.zeros(sum(self._sizes), dtype=torch.int64, device="cpu"))

    @classmethod
    @answer_calls
    def from_schema(cls, schema: Schema, **options: Any) -> Self:
        """Build the network for `pipeline.schema`: its features in; one value out, or one per class or per target.

        Up to 200 numbers are embedded piecewise between the edges that the fit computed, where the network can embed
        numbers; `numbers=None` leaves them as they are.

        Raises `BadConfig`: no schema, no target, a target of one class, a categorical feature without a cardinality, a
        list of what are no ids, or an option the network has not.

        Example:
            >>> from gpupipe.models import MLP
            >>> from gpupipe.schema import Field, Role
            >>> schema = Schema([Field("x", "float32", role=Role.FEATURE), Field("y", "float32", role=Role.TARGET)])
            >>> MLP.from_schema(schema, hidden=(8,)).get_config()["numeric"]
            1
        """
        make: Callable[..., Self] = cls  # with the arguments of the network, not with those here
        where, argument = f"{cls.__name__}.from_schema", cast(Any, schema)
        if not isinstance(argument, Schema):
            has_one = isinstance(getattr(argument, "schema", None), Schema)
            remedy = f"{where}({type(argument).__name__.lower() if has_one else 'pipeline'}.schema)"
            expected = "the schema of a fitted pipeline"
            raise BadConfig(where, "not a schema", got=type(argument), expected=expected, remedy=remedy)
        parameters = signature(cls).parameters
        names = [name for name in parameters if name not in ("numeric", "cardinalities", "outputs", "lists", "task")]
        if all(each.kind != each.VAR_KEYWORD for each in parameters.values()):
            for option in [option for option in options if option not in names]:
                near, expected = find_argument(option, names), f"some of {', '.join(names)}"
                remedy = f"{where}(schema)" if near is None else f"{near}="
                if option in cls.params_names:
                    remedy = f"params={{{option!r}: ...}}"
                raise BadConfig(where, "no such option", got=option, expected=expected, remedy=remedy)
        sizes = _sizes(schema, where) | ({"task": schema.task} if "task" in parameters else {})
        if "numbers" in parameters and 0 < len(schema.numeric) <= MAX_EMBEDDED and schema.edges:
            sizes["numbers"] = PiecewiseLinear.from_schema(schema)
        if options.get("quantiles") is not None:
            _check_quantile_target(schema, f"{where}(quantiles=)")
        model = make(**sizes | options)
        columns = [*schema.categorical, *schema.lists]
        model.id_keys.copy_(torch.cat([_NO_KEYS, *map(_make_keys, columns)]))
        model.id_names = [item.name for item in columns]
        model.number_names = [item.name for item in schema.numeric]
        return model

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
        shape = (batch.numeric.shape[1], batch.codes.shape[1])
        if shape == self.num_features and self.lists == list(batch.lists):
            return
        got: Any = list(batch.lists)
        problem, expected = "the batch has other lists than the model", str(self.lists)
        if shape != self.num_features:
            problem = "the batch has other features than the model"
            got, expected = ("{} numeric and {} categorical columns".format(*n) for n in (shape, self.num_features))
        remedy = f"{name}.from_schema(pipeline.schema) with the pipeline that makes the batches"
        raise SchemaMismatch(name, problem, got=got, expected=expected, remedy=remedy)

    def check_schema(self, schema: Schema) -> None:
        """Raise `SchemaMismatch` for a pipeline's output of other features or lists, or of ids beyond the model's.

        `BadConfig` where the model predicts quantiles, and there is not one number to predict.
        """
        if self.quantiles is not None:
            _check_quantile_target(schema, f"{type(self).__name__}(quantiles=)")
        ids = [*self._config["cardinalities"], *self._config["lists"].values()]
        sizes = [field.cardinality or 0 for field in (*schema.categorical, *schema.lists)]
        same = (len(schema.numeric), len(schema.categorical)) == self.num_features
        same = same and [field.name for field in schema.lists] == self.lists
        if not same or any(size > limit for size, limit in zip(sizes, ids, strict=True)):
            name, problem = type(self).__name__, "the model was made for the output of another pipeline"
            got = f"{len(schema.numeric)} numeric features, ids {sizes}"
            expected = f"{self.num_features[0]} numeric features, ids {ids}"
            remedy = f"{name}.from_schema(pipeline.schema), trained on this pipeline's batches"
            raise SchemaMismatch(name, problem, got=got, expected=expected, remedy=remedy)
        self.check_columns(schema)

    def check_columns(self, schema: Schema) -> None:
        """Raise `SchemaMismatch` for numbers in another order, or ids of other values, than the model has learned.

        A model that was made without a schema learns the numbers' names from the first one that it sees.
        """
        names = [item.name for item in schema.numeric]
        self.number_names = self.number_names or names
        for name, expected in zip(names, self.number_names, strict=False):
            if name != expected:
                where, problem = (
                    f"{type(self).__name__}, numbers",
                    "the model was made for other columns, or another order",
                )
                remedy = f"the pipeline that made its batches, or {type(self).__name__}.from_schema(pipeline.schema)"
                raise SchemaMismatch(where, problem, got=name, expected=expected, remedy=remedy)
        fields = [*schema.categorical, *schema.lists]
        for item, model_keys in zip(fields, torch.split(self.id_keys.cpu(), self._sizes), strict=False):
            column_keys = _make_keys(item)
            if model_keys.any() and column_keys.any() and not torch.equal(model_keys[: len(column_keys)], column_keys):
                where, problem = f"{type(self).__name__}, column {item.name!r}", "its ids are those of another fit"
                remedy = "gp.training.load_weights(new_model, model.state_dict()), which moves the rows to their values"
                if getattr(self, "embedding", None) is None:  # trees, whose splits are of these ids
                    remedy = f"{type(self).__name__}.from_schema(pipeline.schema), and a fit"
                expected = "the column and vocabulary the model was made for: new fits give values other ids"
                raise SchemaMismatch(where, problem, expected=expected, remedy=remedy)

    def match_ids(self, weights: dict[str, Tensor], prefix: str) -> IdMatch:
        """Put the rows of given weights where this model has their values; new values keep the rows they have here.

        Of `["LGA", "JFK"]` given and `["JFK", "EWR", "LGA"]` here the rows 2, 3 go to 4, 2, and 3 is new. Where it is
        not known which values the rows of a column belong to, all of them stay as they are here.
        """
        keys, table = f"{prefix}id_keys", f"{prefix}embedding.table"
        model_keys, loaded_keys = self.id_keys.cpu(), weights.get(keys, self.id_keys[:0]).cpu()
        is_own = not model_keys.any()  # ids of the user's own: what is known of the given ones is taken over
        weights[keys] = loaded_keys if is_own and loaded_keys.shape == model_keys.shape else self.id_keys
        if is_own:
            return IdMatch(keys)
        places = _find_places(model_keys, loaded_keys)
        columns = dict(zip(self.id_names, torch.split(places, self._sizes), strict=True))
        firsts = [int(each[0]) for each in columns.values()]  # of missing values, which are there in every fit
        unknown = [name for name, each in columns.items() if each[0] < 0 or firsts != sorted(firsts)]
        embedding: SharedEmbedding | None = getattr(self, "embedding", None)
        if embedding is None:  # trees, whose splits are of no other ids
            if torch.equal(model_keys, loaded_keys):
                return IdMatch(keys, unknown=unknown)
            for name in [name for name in weights if name.startswith(prefix) and name != keys]:
                del weights[name]
            return IdMatch(keys, unknown=self.id_names)
        rows, model_table = weights.get(table), embedding.table.detach()
        if rows is not None and rows.shape == (len(loaded_keys), model_table.shape[1]):
            moved = torch.cat([(each >= 0) & (name not in unknown) for name, each in columns.items()])
            weights[table] = model_table.cpu().clone()
            weights[table][moved] = rows.detach().cpu()[places[moved]].to(model_table.dtype)
        elif rows is not None and unknown:
            del weights[table]
        new = {name: int((each < 0).sum()) for name, each in columns.items() if name not in unknown}
        return IdMatch(keys, {name: count for name, count in new.items() if count}, unknown)

    def compute_l2(self, num_rows: int | None) -> dict[str, float]:
        """Return the L2 penalties of a fit, by parameter: `embedding_l2` / rows for embedded ids; 0 of unknown rows.

        The mean loss has a term penalty / 2 x sum(weight^2): that of a normal prior around zero. Where 10 of 1,000 rows
        have an id, their gradients weigh 10 / 1,000 against a pull of 300 / 1,000 to zero: it stays almost unlearned.
        One of 600 rows has twice the weight of the pull. So rare ids need not be cut off.
        """
        return {} if self.embedding is None else {"embedding.table": self.embedding_l2 / num_rows if num_rows else 0.0}

    def check_fitted(self) -> None:
        """Raise `NotFitted` for a model that computes nothing before a fit; networks do."""

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
        """Return B values of one output, else B x K; quantiles in ascending order, but not in training.

        Sorted, they cross nowhere, and their loss is never larger (Chernozhukov et al. 2010, "Quantile and probability
        curves without crossing").
        """
        if self.outputs == 1:
            return output.squeeze(1)
        return output if self.quantiles is None or self.training else output.sort(1).values


class IdMatch(NamedTuple):
    """How the rows of given weights were matched to ids.

    `keys` is the name of the keys among the weights; `new` counts by column the ids that the weights do not know;
    `unknown` are columns of which it is not known which values their rows belong to.
    """

    keys: str
    new: Mapping[str, int] = MappingProxyType({})
    unknown: Sequence[str] = ()


_NO_KEYS = torch.zeros(0, dtype=torch.int64, device="cpu")


def _make_keys(item: Field) -> Tensor:
    """Return a key for each id of a column, zeros where its vocabulary is not known."""
    if item.vocabulary is None:
        return torch.zeros(item.cardinality or 0, dtype=torch.int64, device="cpu")
    of_column = int.from_bytes(blake2b(item.name.encode(), digest_size=8).digest(), "little", signed=True)
    return torch.from_numpy(item.vocabulary.keys().view("int64")) ^ of_column


def _find_places(keys: Tensor, among: Tensor) -> Tensor:
    """Find the place of each key, -1 for one that is not there or unknown."""
    if not len(among):
        return torch.full_like(keys, -1)
    ordered, order = among.sort()
    near = torch.searchsorted(ordered, keys).clamp(max=len(among) - 1)
    return torch.where((ordered[near] == keys) & (keys != 0), order[near], -1)


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
    validation.check_choice(model, BAGS, bag=config.get("bag", "mean"))
    check_integer(model, "[1, inf)", "auto", embedding_dim=config.get("embedding_dim", "auto"))
    validation.check_number(model, "[0, 1)", dropout=config.get("dropout", 0))
    if config.get("quantiles") is not None:
        _check_quantiles(model, config["quantiles"], config["outputs"])
    for name in _WIDTHS:
        if not is_integer(config.get(name), 1):  # one layer
            check_integers(model, "[1, inf)", **{name: config.get(name, ())})
    if not config["numeric"] and not len(config["cardinalities"]) and not config["lists"]:
        raise refuse_argument(model, "numeric", 0, "a feature, numeric or categorical", "numeric=1")


def _check_quantiles(model: Tabular, quantiles: Any, outputs: int) -> None:
    """Raise `BadConfig` unless they are ascending numbers between 0 and 1, one an output."""
    levels = list(quantiles) if validation.is_sequence(quantiles) else []
    expected, remedy = "ascending numbers between 0 and 1, such as (0.05, 0.5, 0.95)", "quantiles=(0.05, 0.5, 0.95)"
    inside = all(is_number(level) and 0 < level < 1 for level in levels)
    if not levels or not inside or any(low >= high for low, high in itertools.pairwise(levels)):
        raise refuse_argument(model, "quantiles", quantiles, expected, remedy)
    if outputs not in (1, len(levels)):
        problem, expected = f"{len(levels)} quantiles, and another number of outputs", "outputs=1, or left out"
        raise refuse_argument(model, "outputs", outputs, expected, "outputs=1", problem=problem)


def _check_quantile_target(schema: Schema, where: str) -> None:
    """Raise `BadConfig` unless the schema's target is one number."""
    if schema.task != "regression" or len(schema.targets) != 1:
        problem = "quantiles are of one target that is a number"
        remedy = "quantiles=None, or Features(target='minutes', task='regression')"
        got = f"{schema.task} of {[item.name for item in schema.targets]}"
        raise BadConfig(where, problem, got=got, expected="a regression of one target", remedy=remedy)


def _plain(value: Any) -> Any:
    """Return an argument as a JSON value: a number of NumPy's as Python's, several as a list."""
    if validation.is_sequence(value):
        return [_plain(item) for item in value]
    return value.item() if is_number(value) and hasattr(value, "item") else value


def make_relu_layers(
    inputs: int, hidden: Sequence[int], dropout: float, generator: torch.Generator
) -> tuple[nn.Sequential, int]:
    """Return Linear, ReLU and dropout for each hidden width, and the width at their end."""
    layers: list[nn.Module] = []
    for width, following in itertools.pairwise([inputs, *hidden]):
        layers += [make_linear(width, following, generator), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers), [inputs, *hidden][-1]
