"""Models whose steps can be kept, and those that keep theirs to themselves; each learns as it does alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpupipe.models import MLP
from gpupipe.training import StepCache
from gpupipe.training.alike import NotPlain, likeness, plain
from tests.training.test_capture import loader_of
from tests.training.test_kept_steps import network
from tests.training.test_step_cache import same, trial


class Counts(MLP):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.calls = 0

    def forward(self, batch: Any) -> Tensor:
        self.calls += self.training
        return super().forward(batch) * (1 + 0.1 * self.calls)


class Buffered(MLP):
    """A network with a buffer more."""

    extra: Tensor | None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register_buffer("extra", self.extra_buffer())

    def extra_buffer(self) -> Tensor | None:
        raise NotImplementedError


class Averages(Buffered):
    """A buffer that is another tensor after each step."""

    def extra_buffer(self) -> Tensor | None:
        return torch.zeros(())

    def forward(self, batch: Any) -> Tensor:
        output = super().forward(batch)
        if self.training:
            self.extra = 0.9 * self.extra + 0.1 * output.detach().mean()
        return output + self.extra


class Begins(Buffered):
    """A buffer that is made by the first batch."""

    def extra_buffer(self) -> Tensor | None:
        return None

    def forward(self, batch: Any) -> Tensor:
        output = super().forward(batch)
        if self.extra is None:
            self.extra = output.detach().mean()
        return output - self.extra


class Grows(Buffered):
    """A buffer of another shape after each step."""

    def extra_buffer(self) -> Tensor | None:
        return torch.zeros(1)

    def forward(self, batch: Any) -> Tensor:
        output = super().forward(batch)
        if self.training:
            self.extra = torch.cat([self.extra, output.detach().mean()[None]])
        return output + self.extra.mean()


class Vanishes(Buffered):
    """A buffer that is taken away by the first batch."""

    def extra_buffer(self) -> Tensor | None:
        return torch.ones(1)

    def forward(self, batch: Any) -> Tensor:
        output = super().forward(batch)
        if hasattr(self, "extra"):
            output = output + self.extra
            del self.extra
        return output


class Widens(Buffered):
    """A buffer of another type and shape after the first batch."""

    def extra_buffer(self) -> Tensor | None:
        return torch.zeros(1)

    def forward(self, batch: Any) -> Tensor:
        output = super().forward(batch)
        self.extra = output.detach().double().mean() / 3
        return output - self.extra


@pytest.mark.parametrize("kind", [Counts, Averages, Begins, Grows, Vanishes, Widens], ids=lambda kind: kind.__name__)
def test_models_that_change_beside_their_tensors_learn_as_they_do_alone(kind: type[MLP]) -> None:
    cache, loader = StepCache(), loader_of()
    ours = [trial(loader, network(loader, seed, kind), step_cache=cache) for seed in (1, 2)]
    for (model, rows), seed in zip(ours, (1, 2), strict=True):
        alone, expected = trial(loader_of(), network(loader, seed, kind))
        assert rows == expected and same(model, alone)
        assert getattr(model, "calls", None) == getattr(alone, "calls", None)


def test_a_step_that_writes_to_tensors_of_its_own_is_not_kept() -> None:
    """A graph would go on with those of the fit that recorded it."""
    cache, loader = StepCache(), loader_of()
    trial(loader, network(loader, 1, Averages), step_cache=cache)
    assert len(cache) == 0


class Expanded(Buffered):
    def extra_buffer(self) -> Tensor | None:
        return torch.ones(1).expand(4)


class Sparse(Buffered):
    def extra_buffer(self) -> Tensor | None:
        return torch.eye(3).to_sparse()


class Derived(Buffered):
    def extra_buffer(self) -> Tensor | None:
        return self.layers[0].weight * 2


class Inferred(Buffered):
    def extra_buffer(self) -> Tensor | None:
        with torch.inference_mode():
            return torch.zeros(1)


class Overlapping(Buffered):
    """A buffer that is a part of a weight."""

    def extra_buffer(self) -> Tensor | None:
        return self.layers[0].weight.detach()[:2]

    def forward(self, batch: Any) -> Tensor:
        return super().forward(batch) + self.extra.sum()


KINDS = {
    Expanded: "share memory",
    Overlapping: "share memory",
    Sparse: "or is sparse",
    Derived: "cannot be written to",
    Inferred: "cannot be written to",
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_tensors_that_have_no_memory_of_their_own_are_left_alone(
    kind: type[MLP], caplog: pytest.LogCaptureFixture
) -> None:
    cache, loader = StepCache(), loader_of()
    _, rows = trial(loader, network(loader, 1, kind), step_cache=cache)
    _, expected = trial(loader_of(), network(loader, 1, kind))
    assert rows == expected and len(cache) == 0 and KINDS[kind] in caplog.text


def test_slices_of_one_vector_are_kept() -> None:
    """As some libraries lay out parameters: beside each other, without an overlap."""

    def flat(seed: int) -> MLP:
        model = network(loader, seed)
        vector = nn.utils.parameters_to_vector(model.parameters()).detach()
        nn.utils.vector_to_parameters(vector, model.parameters())
        return model

    cache, loader = StepCache(), loader_of()
    ours = [trial(loader, flat(seed), step_cache=cache) for seed in (1, 2)]
    assert len(cache) == 1
    for (model, rows), seed in zip(ours, (1, 2), strict=True):
        alone, expected = trial(loader_of(), flat(seed))
        assert rows == expected and same(model, alone)


def test_what_a_function_sees_has_to_be_plain() -> None:
    tensor = torch.ones(1)
    with pytest.raises(NotPlain, match="a Tensor"):
        plain(lambda: tensor)
    assert plain(float("nan")) == plain(float("nan")) != plain(1.0)

    def empty() -> Any:
        return later

    with pytest.raises(NotPlain, match="nothing in it"):
        plain(empty)
    later = empty
    with pytest.raises(NotPlain, match="sees itself"):
        plain(later)


@dataclass
class Scale:
    value: float = 1.0


def test_attributes_beside_a_dataclass_fields_are_told_apart() -> None:
    one, other = nn.Linear(1, 1), nn.Linear(1, 1)
    one.scale, other.scale = Scale(), Scale()  # type: ignore[assignment]
    assert likeness(one) == likeness(other)
    other.scale.extra = 3.0  # type: ignore[union-attr]
    assert likeness(one) != likeness(other)
