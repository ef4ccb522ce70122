"""TabM: an ensemble of multilayer perceptrons that share their matrices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpupipe.models.embeddings import Numbers
from gpupipe.models.tabular import Tabular
from gpupipe.support import validation
from gpupipe.support.validation import check_integer, refuse_argument
from gpupipe.tensors.batch import Batch

TASKS = ("binary", "multiclass", "multilabel", "regression")


class TabM(Tabular):
    """TabM (Gorishniy et al. 2025, arXiv:2410.24210): k MLPs in one, which share the matrices of their layers.

    A member scales each layer's inputs and outputs by vectors of its own (BatchEnsemble, Wen et al. 2020,
    arXiv:2002.06715), and has its own biases and last layer. The first scales make the members differ: they start
    normal, one draw for each feature, or at random signs where numbers are not embedded; all others start at 1.

    In training every member predicts: B x k values, or B x k x K. `Trainer` minimises the mean of the members' losses,
    each taken alone. In evaluation B or B x K values come out, as of any network: the members' mean prediction. The
    other arguments, and the errors, are those of `MLP`.

    Args:
        task: what the mean is taken of: "regression" outputs, or the probabilities of "binary", "multilabel" and
            "multiclass" targets, given as log-odds and logits. `from_schema` reads it in the schema.
        members: k.
        hidden: the hidden layers' widths, first to last; at least one.

    Memory: weights as `MLP`, and for each member and layer its inputs and twice its outputs. A training step holds k
        matrices of each layer, and about 3 x B x k x width float32 a layer.

    Example:
        >>> model = TabM(numeric=3, hidden=(16, 16), members=4, seed=7)
        >>> batch = Batch(torch.zeros(5, 3), torch.ones(5, 0).int())
        >>> model(batch).shape, model.eval()(batch).shape
        (torch.Size([5, 4]), torch.Size([5]))
    """

    learning_rate: ClassVar[float] = 6e-3  # measured with one-cycle

    def __init__(
        self,
        numeric: int,
        cardinalities: Sequence[int] = (),
        outputs: int = 1,
        *,
        task: Literal["binary", "multiclass", "multilabel", "regression"] = "regression",
        members: int = 8,
        hidden: int | Sequence[int] = (128, 128),
        dropout: float = 0.1,
        embedding_dim: int | Literal["auto"] = "auto",
        numbers: Numbers | Mapping[str, Any] | None = None,
        quantiles: Sequence[float] | None = None,
        seed: int = 0,
        lists: Mapping[str, int] | None = None,
        bag: Literal["mean", "sum", "max"] = "mean",
    ) -> None:
        validation.check_choice(self, TASKS, task=task)
        check_integer(self, "[1, inf)", members=members)
        generator = self.start(locals())
        widths = self._config["hidden"]
        if not widths:
            raise refuse_argument(self, "hidden", hidden, "at least one layer's width", "hidden=(128, 128)")
        if task == "multiclass" and outputs == 1:
            raise refuse_argument(self, "outputs", outputs, "a logit for each of two or more classes", "task='binary'")
        self.task: str = self._config["task"]
        self.members: int = self._config["members"]
        layers: list[nn.Module] = []
        for width, following in itertools.pairwise([self.num_inputs, *widths]):
            layers += [LinearBatchEnsemble(width, following, self.members, generator), nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
        layers.append(LinearEnsemble(widths[-1], self.outputs, self.members, generator))
        self.layers = nn.Sequential(*layers)
        layers[0].r.data = self._draw_first_scales(generator)

    def _draw_first_scales(self, generator: torch.Generator) -> Tensor:
        """Draw k x `num_inputs` scales, the same for all values that embed one feature."""
        sizes = [1 if self.numbers is None else self.numbers.dim] * self.num_features[0]
        sizes += [] if self.embedding is None else [self.embedding.dim] * self.embedding.num_columns
        scales = torch.empty(self.members, len(sizes), device="cpu")
        if self.numbers is None:
            scales.bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
        else:
            scales.normal_(generator=generator)
        return scales.repeat_interleave(torch.tensor(sizes, device="cpu"), 1)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the members' scales and biases, which do not decay."""
        return {name for name, _ in self.layers.named_parameters(prefix="layers") if not name.endswith(".weight")}

    def forward(self, batch: Batch) -> Tensor:
        output: Tensor = self.layers(self.inputs(batch).expand(self.members, -1, -1)).transpose(0, 1)
        if self.training:
            return output.squeeze(2) if self.outputs == 1 else output
        return self.shaped(self._average(output))

    def _average(self, output: Tensor) -> Tensor:
        """Compute the B x K mean prediction of B x k x K outputs, in float32 at least."""
        output = output.to(torch.promote_types(output.dtype, torch.float32))
        if self.task == "regression":
            return output.mean(1)
        if self.task == "multiclass":
            return F.log_softmax(output, 2).logsumexp(1) - math.log(self.members)
        return F.logsigmoid(output).logsumexp(1) - F.logsigmoid(-output).logsumexp(1)


class LinearBatchEnsemble(nn.Module):
    """Linear layers of k members with one matrix W: member i computes x diag(r_i) W^T diag(s_i) + b_i.

    As PyTorch's, W (`outputs` x `inputs`) and b start uniform in +-1 / sqrt(inputs), here the same b for all members.
    """

    def __init__(self, inputs: int, outputs: int, members: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = _draw((outputs, inputs), inputs, generator)
        self.r = nn.Parameter(torch.ones(members, inputs, device="cpu"))
        self.s = nn.Parameter(torch.ones(members, outputs, device="cpu"))
        self.bias = nn.Parameter(_draw((outputs,), inputs, generator).data.repeat(members, 1))

    def forward(self, values: Tensor) -> Tensor:
        """Compute k x B x O from k x B x I."""
        # Scales go into the members' matrices: these are smaller than the values of a batch.
        weights = self.r.unsqueeze(2) * self.weight.T * self.s.unsqueeze(1)
        return torch.baddbmm(self.bias.unsqueeze(1), values, weights)


class LinearEnsemble(nn.Module):
    """Linear layers of k members that share nothing, each starting as PyTorch's does."""

    def __init__(self, inputs: int, outputs: int, members: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = _draw((members, inputs, outputs), inputs, generator)
        self.bias = _draw((members, outputs), inputs, generator)

    def forward(self, values: Tensor) -> Tensor:
        """Compute k x B x O from k x B x I."""
        return torch.baddbmm(self.bias.unsqueeze(1), values, self.weight)


def _draw(shape: tuple[int, ...], inputs: int, generator: torch.Generator) -> nn.Parameter:
    bound = inputs**-0.5
    return nn.Parameter(torch.empty(shape, device="cpu").uniform_(-bound, bound, generator=generator))
