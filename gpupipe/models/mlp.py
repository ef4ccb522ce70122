"""The plain tabular network: embedded ids beside the numbers, then fully connected layers.

Shapes: B rows, F numeric features, C categorical features, L lists of ids, D the embedding's width, K classes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.models.embedding import BAGS, RESERVED, SharedEmbedding
from gpupipe.schema import Schema
from gpupipe.tensors.batch import Batch

__all__ = ["MLP"]


class MLP(nn.Module):
    """Fully connected ReLU layers over the numbers and one shared embedding table of the ids.

    How ids are embedded says `SharedEmbedding`. Weights start as in He et al. 2015 (arXiv:1502.01852), biases at zero,
    drawn on the CPU from the model's own generator: the same on every device, and torch's global one is left as it was.

    Args:
        numeric: F, how many numeric features a batch has.
        cardinalities: C numbers of ids, missing and unknown included (at least 2 each).
        outputs: 1 for a regression and a binary target (B values come out), else K classes or targets (B x K).
        hidden: the hidden layers' widths, first to last; empty for a linear model.
        dropout: share of hidden values zeroed in training.
        embedding_dim: D, or "auto".
        seed: rules the weights.
        lists: for each feature that is a list of ids, by name, their number, missing and unknown included.
        bag: how the embedded ids of a list become one vector: their `"mean"`, `"sum"` or `"max"`; zeros for an empty
            list.

    Raises:
        BadConfig: no input at all, or a size that makes no sense.

    Memory:
        sum(cardinalities) x D float32 for the embedding, and the layers' weights; training with AdamW four times that
        (a gradient and two moments, all dense).

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
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        embedding_dim: int | Literal["auto"] = "auto",
        seed: int = 0,
        lists: Mapping[str, int] | None = None,
        bag: Literal["mean", "sum", "max"] = "mean",
    ) -> None:
        super().__init__()
        cardinalities = [int(n) for n in cardinalities]
        lists = {name: int(n) for name, n in (lists or {}).items()}
        self._config: dict[str, Any] = {
            "numeric": numeric,
            "cardinalities": cardinalities,
            "outputs": outputs,
            "hidden": [int(width) for width in hidden],
            "dropout": dropout,
            "embedding_dim": embedding_dim,
            "seed": seed,
            "lists": lists,
            "bag": bag,
        }
        _check(self._config)
        self.outputs = outputs
        self.num_features = (numeric, len(cardinalities))
        self.lists = list(lists)
        generator = torch.Generator("cpu").manual_seed(seed)

        self.embedding: SharedEmbedding | None = None
        inputs = numeric
        if cardinalities or lists:
            self.embedding = SharedEmbedding(cardinalities, embedding_dim, generator, list(lists.values()), bag)
            inputs += (len(cardinalities) + len(lists)) * self.embedding.dim
        widths = [inputs, *hidden]
        layers: list[nn.Module] = []
        for width, following in itertools.pairwise(widths):
            layers += [_linear(width, following, generator), nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
        self.layers = nn.Sequential(*layers, _linear(widths[-1], outputs, generator))

    @classmethod
    def from_schema(
        cls,
        schema: Schema,
        *,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        embedding_dim: int | Literal["auto"] = "auto",
        seed: int = 0,
        bag: Literal["mean", "sum", "max"] = "mean",
    ) -> MLP:
        """The network for a pipeline's output: its features in; one value out, or one per class or per target.

        Args:
            schema: `pipeline.schema`.
            hidden: as in the constructor.
            dropout: as in the constructor.
            embedding_dim: as in the constructor.
            seed: as in the constructor.
            bag: as in the constructor.

        Raises:
            BadConfig: no target, a target of one class, a categorical feature without a cardinality, or a list of what
                are no ids.

        Example:
            >>> from gpupipe.schema import Field, Role
            >>> temp, delay = Field("temp", "float32", role=Role.FEATURE), Field("delay", "float32", role=Role.TARGET)
            >>> schema = Schema([temp, delay])
            >>> MLP.from_schema(schema, hidden=(8,)).get_config()["numeric"]
            1
        """
        if schema.target is None:
            raise BadConfig(
                "MLP.from_schema",
                "the schema has no target",
                got=schema.names,
                expected="a column with the role target, which decides the number of outputs",
                remedy="gp.Features(..., target='column')",
            )
        classes = schema.target.classes
        if classes is not None and len(classes) < 2:
            raise BadConfig(
                f"MLP.from_schema, target {schema.target.name!r}",
                "there is nothing to tell apart",
                got=classes,
                expected="at least two classes",
                remedy="fit the pipeline on data that holds more than one",
            )
        cardinalities = {}
        for field in [*schema.categorical, *schema.lists]:
            if field.cardinality is None:
                raise BadConfig(
                    f"MLP.from_schema, column {field.name!r}",
                    f"a {field.kind} feature whose number of ids is not known",
                    got=field.dtype,
                    expected="a cardinality in the schema",
                    remedy=f"(['{field.name}'], pre.Categorify()); for numbers a model that reads batch.lists",
                )
            cardinalities[field.name] = field.cardinality
        return cls(
            len(schema.numeric),
            [cardinalities[field.name] for field in schema.categorical],
            len(classes) if classes is not None and schema.task == "multiclass" else len(schema.targets),
            hidden=hidden,
            dropout=dropout,
            embedding_dim=embedding_dim,
            seed=seed,
            lists={field.name: cardinalities[field.name] for field in schema.lists},
            bag=bag,
        )

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments as plain JSON values: `MLP(**config)` has the same weights' shapes and start."""
        return dict(self._config)

    def forward(self, batch: Batch) -> Tensor:
        """B logits or values with one output, else B x K logits.

        Raises:
            SchemaMismatch: the batch has another number of columns than the model was made for, or other lists.
        """
        found = (batch.numeric.shape[1], batch.codes.shape[1])
        if found != self.num_features:
            raise SchemaMismatch(
                "MLP",
                "the batch has other features than the model",
                got=f"{found[0]} numeric and {found[1]} categorical columns",
                expected=f"{self.num_features[0]} numeric and {self.num_features[1]} categorical columns",
                remedy="MLP.from_schema(pipeline.schema) with the pipeline that makes the batches",
            )
        if self.lists != list(batch.lists):
            raise SchemaMismatch(
                "MLP",
                "the batch has other lists than the model",
                got=list(batch.lists),
                expected=str(self.lists),
                remedy="MLP.from_schema(pipeline.schema) with the pipeline that makes the batches",
            )
        inputs = batch.numeric
        if self.embedding is not None:
            bags = [self.embedding.bag(place, batch.lists[name]) for place, name in enumerate(self.lists)]
            inputs = torch.cat([inputs, self.embedding(batch.codes).flatten(1), *bags], 1)
        output: Tensor = self.layers(inputs)
        return output.squeeze(1) if self.outputs == 1 else output


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    # By way of the meta device, because nn.Linear's own start would draw from the global generator.
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def _check(config: dict[str, Any]) -> None:
    numeric, dim = config["numeric"], config["embedding_dim"]
    cardinalities = [*config["cardinalities"], *config["lists"].values()]
    rules = [
        ("numeric", isinstance(numeric, int) and numeric >= 0, "a number of features", "MLP.from_schema(schema)"),
        ("cardinalities", all(n >= RESERVED for n in cardinalities), "at least 2 ids a column", "ids + 2 a column"),
        ("numeric", numeric != 0 or len(cardinalities) > 0, "a feature, numeric or categorical", "numeric=1"),
        ("outputs", config["outputs"] > 0, "1, or the number of classes", "outputs=1"),
        ("hidden", all(width > 0 for width in config["hidden"]), "widths of at least 1", "hidden=(256, 128)"),
        ("dropout", 0 <= config["dropout"] < 1, "a share in [0, 1)", "dropout=0.1"),
        ("embedding_dim", dim == "auto" or (isinstance(dim, int) and dim > 0), "1 or more, or 'auto'", "'auto'"),
        ("bag", config["bag"] in BAGS, "'mean', 'sum' or 'max'", "bag='mean'"),
    ]
    for name, good, expected, remedy in rules:
        if not good:
            raise BadConfig(f"MLP({name}=)", "makes no sense", got=config[name], expected=expected, remedy=remedy)
