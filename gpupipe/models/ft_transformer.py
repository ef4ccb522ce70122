"""FT-Transformer: attention over tokens, one a feature."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpupipe.models.tabular import Tabular, make_linear
from gpupipe.support import validation
from gpupipe.support.validation import check_integer, refuse_argument
from gpupipe.tensors.batch import Batch


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
        quantiles: Sequence[float] | None = None,
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
        self.norm, self.last = nn.LayerNorm(dim), make_linear(dim, self.outputs, generator, "glorot")

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
