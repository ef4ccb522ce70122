"""TabM against its authors' package, against MLPs, and against loops over its members."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.models import MLP, PiecewiseLinear, TabM
from gpupipe.schema import Field, Kind, Role, Schema
from gpupipe.tensors.batch import Batch
from gpupipe.training import PairwiseRanking, PerTarget, Trainer
from gpupipe.training.loop.device import make_forward
from gpupipe.training.loop.losses import LOSSES, average_members, choose_loss, compute_mean_loss, smooth_labels
from gpupipe.training.loop.quantiles import PinballLoss
from gpupipe.training.loop.run_start import make_objective
from gpupipe.training.optim.optimizers import make_parameter_groups
from tests.raising import raises
from tests.training.host_waits import no_host_wait
from tests.training.recorded import pretend

K = 4
EDGES = [[-1.0, 0.0, 0.5, 1.0], [0.0, 2.0], [-2.0, -1.0, 1.0]]


def draw(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def tabm() -> Any:
    return pytest.importorskip("tabm", reason="tabm is not installed here: run `make setup`")


def scramble(model: nn.Module, std: float = 0.5) -> None:
    """Give each parameter values that no start has, so that none can hide."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std, generator=draw(parameter.numel()))


def probabilities(task: str, output: Tensor) -> Tensor:
    """What outputs mean in a task, class probabilities last."""
    if task == "multiclass":
        return output.softmax(-1)
    return output if task == "regression" else output.sigmoid()


# the authors' package ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize(("task", "outputs"), [("binary", 1), ("multiclass", 3), ("regression", 1), ("multilabel", 2)])
def test_it_is_the_authors(layers: int, task: Any, outputs: int, tabm: Any, rows: Callable[..., Batch]) -> None:
    """Ids are one-hot there, which a table of unit vectors is here."""
    theirs = tabm.TabM.make(
        n_num_features=3, cat_cardinalities=[5, 5], d_out=outputs, k=K, n_blocks=layers, d_block=16, dropout=0.0
    )
    scramble(theirs)
    hidden = (16,) * layers
    ours = TabM(3, [5, 5], outputs, task=task, members=K, hidden=hidden, dropout=0.0, embedding_dim=5)
    assert ours.embedding is not None
    ours.embedding.table.data = torch.eye(5).repeat(2, 1)
    for layer, other in zip(linear_layers(ours), linear_layers(theirs), strict=True):
        layer.load_state_dict(other.state_dict())  # they have the same names
    batch = rows(50, 3, (5, 5))
    with torch.no_grad():
        expected = theirs(batch.numeric, batch.codes.long())
        members, average = ours.train()(batch), ours.eval()(batch)
    torch.testing.assert_close(members.view(50, K, outputs), expected, rtol=1e-6, atol=1e-6)
    mean = probabilities(task, expected).mean(1).squeeze(1)
    torch.testing.assert_close(probabilities(task, average), mean, rtol=1e-6, atol=1e-6)


def linear_layers(model: nn.Module) -> list[Any]:
    """The layers of either package's TabM, first to last."""
    return [m for m in model.modules() if type(m).__name__ in ("LinearBatchEnsemble", "LinearEnsemble")]


def test_it_starts_as_the_authors(tabm: Any) -> None:
    """By the least and the largest value of each parameter, and by which values are equal."""
    torch.manual_seed(0)
    theirs = tabm.TabM.make(n_num_features=3, cat_cardinalities=[5, 5], d_out=2, k=64, n_blocks=2, d_block=256)
    ours = TabM(3, [5, 5], 2, members=64, hidden=(256, 256), embedding_dim=5, seed=1)
    for layer, other in zip(linear_layers(ours), linear_layers(theirs), strict=True):
        expected = dict(other.named_parameters())
        assert {name for name, _ in layer.named_parameters()} == {*expected}
        for name, value in layer.named_parameters():
            assert value.shape == expected[name].shape
            for end in (torch.min, torch.max):
                torch.testing.assert_close(end(value), end(expected[name]), rtol=0.05, atol=0)
            same = [(each == each[0]).all().item() for each in (value, expected[name])]
            assert same[0] == same[1]


def test_the_first_scales_are_of_features() -> None:
    """Normal with embedded numbers, one draw for all values of a feature; else random signs."""
    embedded = TabM(3, [5], members=64, hidden=(8,), embedding_dim=5, numbers=PiecewiseLinear(EDGES, dim=4), seed=1)
    first: Any = embedded.layers[0]
    features = first.r.split([4, 4, 4, 5], 1)  # of one feature each
    assert all((scales == scales[:, :1]).all() for scales in features)
    drawn = torch.stack([scales[:, 0] for scales in features])
    assert drawn.unique().numel() == drawn.numel()
    assert abs(drawn.mean().item()) < 0.2 and abs(drawn.std().item() - 1) < 0.2
    plain: Any = TabM(3, [5], members=64, hidden=(8,), embedding_dim=5, seed=1).layers[0]
    assert plain.r.abs().eq(1).all() and (plain.r[:, 3:] == plain.r[:, 3:4]).all()
    assert 0 < plain.r.eq(1).float().mean().item() < 1


# one member -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("outputs", [1, 3])
def test_a_member_is_an_mlp(outputs: int, rows: Callable[..., Batch]) -> None:
    """Its matrices are diag(r) W^T diag(s)."""
    options: dict[str, Any] = {"numbers": PiecewiseLinear(EDGES, dim=4), "hidden": (16, 8)}
    model = TabM(3, [7, 4], outputs, members=K, dropout=0.0, **options)
    scramble(model)
    batch = rows(40)
    linear = linear_layers(model)
    for member in range(K):
        mlp = MLP(3, [7, 4], outputs, **options)
        mlp.embedding, mlp.numbers = model.embedding, model.numbers
        plain: list[Any] = [layer for layer in mlp.layers if isinstance(layer, nn.Linear)]
        for theirs, ours in zip(plain[:-1], linear[:-1], strict=True):
            theirs.weight.data = torch.diag(ours.s[member]) @ ours.weight @ torch.diag(ours.r[member])
            theirs.bias.data = ours.bias[member]
        plain[-1].weight.data, plain[-1].bias.data = linear[-1].weight[member].T, linear[-1].bias[member]
        torch.testing.assert_close(model(batch)[:, member], mlp(batch), rtol=1e-5, atol=1e-4)


def test_one_member_is_a_network_like_others(rows: Callable[..., Batch]) -> None:
    for task, outputs in (("regression", 1), ("binary", 1), ("multiclass", 3)):
        model: Any = TabM(3, [7, 4], outputs, task=task, members=1, hidden=(8,), dropout=0.0)
        batch = rows(30)
        alone, average = model.train()(batch)[:, 0], model.eval()(batch)
        torch.testing.assert_close(probabilities(task, average), probabilities(task, alone))


# evaluation -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("task", "outputs"), [("binary", 1), ("multilabel", 3), ("multiclass", 3), ("regression", 2)])
def test_it_predicts_the_mean_of_the_members(task: Any, outputs: int, rows: Callable[..., Batch]) -> None:
    model, batch = TabM(3, [7, 4], outputs, task=task, members=K, hidden=(8,), dropout=0.0), rows(60)
    scramble(model)
    members = model(batch).view(60, K, outputs).double()
    expected = probabilities(task, members).mean(1)
    found = probabilities(task, model.eval()(batch).view(60, outputs).double())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_quantiles_are_the_mean_of_the_members_in_order(rows: Callable[..., Batch]) -> None:
    model, batch = TabM(3, [7, 4], quantiles=(0.1, 0.5, 0.9), members=K, hidden=(8,), dropout=0.0), rows(60)
    scramble(model)
    expected, _ = model(batch).mean(1).sort(1)
    torch.testing.assert_close(model.eval()(batch), expected)


def test_far_logits_stay_exact(rows: Callable[..., Batch]) -> None:
    """Of 300 and 200 the mean probability is 1 in float32; its log-odds are not infinite."""
    model, batch = TabM(3, task="binary", members=2, hidden=(4,)).eval(), rows(2, 3, ())
    last: Any = model.layers[-1]
    last.weight.data.zero_()
    last.bias.data = torch.tensor([[300.0], [200.0]])
    torch.testing.assert_close(model(batch), torch.full((2,), 200.0 + torch.tensor(2.0).log().item()))


# training ---------------------------------------------------------------------------------------------------------
def per_row(output: Tensor, batch: Batch) -> Tensor:
    assert batch.target is not None
    return (output - batch.target).abs() + output.std()  # of the whole batch: members must not be mixed


def mean_of_all(output: Tensor, batch: Batch) -> Tensor:
    return per_row(output, batch).mean()


LOSSES_TRIED: dict[str, tuple[str, Any, bool]] = {
    "bce": ("binary", LOSSES["bce"], True),
    "bce of several": ("multilabel", LOSSES["bce"], True),
    "cross-entropy": ("multiclass", LOSSES["cross-entropy"], True),
    "mse": ("regression", LOSSES["mse"], True),
    "mse of several": ("several", LOSSES["mse"], True),
    "huber": ("regression", LOSSES["huber"], True),
    "pinball": ("quantiles", PinballLoss((0.1, 0.5, 0.9)), True),
    "smoothed bce": ("binary", smooth_labels("bce", 0.2), True),
    "smoothed cross-entropy": ("multiclass", smooth_labels("cross-entropy", 0.2), True),
    "PerTarget": ("several", PerTarget(["mse", "huber"], [1, 3]), True),
    "PairwiseRanking": ("regression", PairwiseRanking(), True),
    "PairwiseRanking, grouped": ("regression", PairwiseRanking("query"), True),
    "a function of rows": ("regression", per_row, True),
    "a function's mean": ("regression", mean_of_all, False),
    "torch's": ("regression", choose_loss(nn.L1Loss(), None), False),
    "torch's, by rows": ("multiclass", choose_loss(nn.CrossEntropyLoss(reduction="none"), None), True),
}
"""By name: the task, the loss, and whether it takes rows' weights."""


def rows_of(task: str, *, weighted: bool) -> Batch:
    numeric, codes = torch.randn(24, 3, generator=draw()), torch.ones(24, 0, dtype=torch.int32)
    targets: dict[str, Tensor] = {
        "binary": (numeric[:, 0] > 0).float(),
        "multilabel": (numeric[:, :2] > 0).float(),
        "multiclass": torch.bucketize(numeric[:, 0].clone(), torch.tensor([-0.5, 0.5])).int(),
        "regression": numeric[:, 0] ** 2,
        "quantiles": numeric[:, 0] ** 2,
        "several": numeric[:, :2] ** 2,
    }
    weight = torch.rand(24, generator=draw(2)) if weighted else None
    return Batch(numeric, codes, targets[task], weight, {"query": torch.arange(24) // 6})


OUTPUTS = {"binary": 1, "multilabel": 2, "multiclass": 3, "quantiles": 3, "regression": 1, "several": 2}


@pytest.mark.parametrize("name", LOSSES_TRIED)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_is_the_mean_of_the_members_losses(name: str, weighted: bool) -> None:
    task, loss, takes_weights = LOSSES_TRIED[name]
    batch = rows_of(task, weighted=weighted and takes_weights)
    model = TabM(3, outputs=OUTPUTS[task], members=K, hidden=(8,), dropout=0.0)
    scramble(model)
    value, weight = make_objective(model, average_members(loss, K))(batch)
    output = model(batch)
    each = [compute_mean_loss(loss(output[:, member].clone(), batch), batch) for member in range(K)]
    torch.testing.assert_close(value, torch.stack([mean for mean, _ in each]).mean())
    assert float(weight) == float(each[0][1])
    of_the_mean, _ = compute_mean_loss(loss(output.mean(1), batch), batch)
    assert abs(value - of_the_mean).item() > 1e-4


def first_update(trainer: Trainer, batch: Batch, schema: Schema) -> dict[str, Tensor]:
    """The weights after one update of plain gradient descent by the trainer."""

    class Loader(list[Batch]):
        batch_size = len(batch)

    loader: Any = Loader([batch])
    loader.schema = schema
    trainer.fit(loader)
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("binary", {}),
        ("binary", {"class_weight": {True: 3.0, False: 1.0}, "label_smoothing": 0.1}),
        ("multiclass", {"class_weight": "balanced"}),
        ("regression", {"loss": "huber"}),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_trainer_minimises_the_mean_of_the_members_losses(
    task: Any, settings: dict[str, Any], weighted: bool
) -> None:
    """One step of the trainer is one by hand, in a loop over the members."""
    classes: dict[str, Any] = {"binary": (False, True), "multiclass": ("S", "M", "L"), "regression": None}
    fields = [Field(f"x{i}", "float32", role=Role.FEATURE) for i in range(3)]
    schema = Schema([*fields, Field("y", "float32", role=Role.TARGET, classes=classes[task])])
    batch = rows_of(task, weighted=weighted)
    make = lambda: TabM.from_schema(schema, members=K, hidden=(8,), dropout=0.0, seed=3)  # noqa: E731
    options = {"optimizer": lambda p, lr: torch.optim.SGD(p, lr=lr), "lr": 0.1, "schedule": "constant", "warmup": 0.0}
    trainer = Trainer(make(), max_epochs=1, progress=False, device="cpu", **options, **settings)
    found = first_update(trainer, batch, schema)
    model = make()
    assert batch.target is not None
    row_weights = torch.ones(24) if batch.weight is None else batch.weight
    if "class_weight" in settings:
        counts = torch.bincount(batch.target.long())
        of_class = 24 / (len(counts) * counts) if task == "multiclass" else torch.tensor([1.0, 3.0])
        row_weights = row_weights * of_class[batch.target.long()]
    total = torch.zeros(())
    for member in range(K):
        output, smoothing = model(batch)[:, member], settings.get("label_smoothing", 0.0)
        if task == "binary":
            smooth = batch.target * (1 - smoothing) + smoothing / 2
            losses = F.binary_cross_entropy_with_logits(output, smooth, reduction="none")
        elif task == "multiclass":
            losses = F.cross_entropy(output, batch.target.long(), reduction="none")
        else:
            losses = F.huber_loss(output, batch.target, reduction="none")
        total = total + (losses * row_weights).sum() / row_weights.sum() / K
    total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(found[name], parameter.data - 0.1 * parameter.grad)


def test_outputs_without_members_are_refused() -> None:
    class Claims(nn.Module):
        members = 3

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(3, 1)

        def forward(self, batch: Batch) -> Tensor:
            return self.net(batch.numeric).squeeze(1)

    trainer = Trainer(Claims(), max_epochs=1, loss="mse", progress=False, device="cpu")
    with raises(SchemaMismatch, where="model", got=(24,), remedy="a model without `members`"):
        trainer.fit([rows_of("regression", weighted=False)])
    with raises(SchemaMismatch, where="model", got=str):
        average_members(LOSSES["mse"], 3)("scores", rows_of("regression", weighted=False))
    with raises(SchemaMismatch, where="loss", got=float):  # a loss that is no tensor
        make_objective(TabM(3, members=K), average_members(lambda *_: 1.0, K))(rows_of("regression", weighted=False))


def test_scales_and_biases_do_not_decay() -> None:
    model = TabM(3, [7], hidden=(8, 8), members=K, numbers=PiecewiseLinear(EDGES, dim=4))
    groups = make_parameter_groups(model, torch.zeros(()), highest=1.0, weight_decay=0.3)
    decaying = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
    names = {name for name, parameter in model.named_parameters() if id(parameter) in decaying}
    assert names == {"layers.0.weight", "layers.3.weight", "layers.6.weight"}


def table() -> pd.DataFrame:
    """600 rows of two numbers and a name that tell a class, one of three sizes and a number far from 0."""
    numbers = torch.randn(600, 2, generator=draw(4)).double()
    names = torch.randint(0, 4, (600,), generator=draw(5))
    signal = numbers[:, 0] * numbers[:, 1] + (names == 2)
    sizes = torch.bucketize(signal, torch.tensor([-0.3, 0.7], dtype=torch.float64))
    return pd.DataFrame(
        {
            "a": numbers[:, 0].numpy(),
            "b": numbers[:, 1].numpy(),
            "c": [["red", "green", "blue", "black"][name] for name in names.tolist()],
            "good": (signal > 0.2).numpy(),
            "size": [["S", "M", "L"][size] for size in sizes.tolist()],
            "price": (1e4 + 3e3 * signal).numpy(),
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "task", "metric", "bound"),
    [
        ("good", "binary", "auc", 0.9),
        ("size", "multiclass", "accuracy", 0.7),
        (["a > 0", "b > 0"], "multilabel", "auc", 0.9),
        ("price", "regression", "r2", 0.6),
    ],
)
def test_it_learns_each_task_and_is_saved(target: Any, task: str, metric: str, bound: float, tmp_path: Path) -> None:
    """The prices are standardised by default: members are compared with the target as it is stored."""
    frame = table()
    groups = [(["a", "b"], pre.StandardScaler()), (["c"], pre.Categorify())]
    leaks = {"allow_leak": ["a", "b"]} if task == "multilabel" else {}
    features = gp.Features(*groups, target=target, **leaks)
    pipeline = gp.Pipeline([], features, backend="cpu").fit(frame[:480])
    train = pipeline.loader(frame[:480], batch_size=48, shuffle="rows")
    valid = pipeline.loader(frame[480:])
    model = TabM.from_schema(pipeline.schema, hidden=(32,), members=K, seed=1)
    assert model.get_config()["task"] == model.task == task
    trainer = gp.Trainer(model, max_epochs=30, device="cpu", progress=False)
    history = trainer.fit(train, valid)
    assert history.rows[-1][f"valid_{metric}"] > bound
    gp.save(tmp_path / "run", pipeline, model)
    scorer, again = gp.Scorer(pipeline, model), gp.load(tmp_path / "run", backend="cpu")
    assert isinstance(again.model, TabM) and again.model.get_config() == model.get_config()
    pd.testing.assert_frame_equal(again.predict(frame[480:]), scorer.predict(frame[480:]))
    if task != "regression":
        scored = torch.tensor(again.predict_proba(frame[480:]).to_numpy(copy=True))
        batch = next(iter(pipeline.loader(frame[480:], batch_size=120)))
        members = model.eval().layers(model.inputs(batch).expand(K, -1, -1))
        expected = probabilities(task, members).mean(0)
        torch.testing.assert_close(scored.view_as(expected), expected, rtol=1e-4, atol=1e-5)


def test_a_captured_step_is_the_eager_one(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = table()
    features = gp.Features((["a", "b"], pre.StandardScaler()), (["c"], pre.Categorify()), target="good")
    pipeline = gp.Pipeline([], features, backend="cpu").fit(frame)

    def fit() -> dict[str, Tensor]:
        model = TabM.from_schema(pipeline.schema, hidden=(8, 8), members=K, seed=1)
        loader = pipeline.loader(frame, batch_size=64, shuffle="rows", seed=1)
        gp.Trainer(model, max_epochs=2, device="cpu", progress=False, max_grad_norm=1.0).fit(loader)
        return model.state_dict()

    eager = fit()
    with monkeypatch.context() as patch:
        graphs = pretend(patch)
        captured = fit()
        assert graphs.made == 1
    for name, value in eager.items():
        assert torch.equal(captured[name], value), name


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_a_step_makes_no_host_wait(task: Any) -> None:
    model = TabM(3, outputs=OUTPUTS[task], task=task, members=K, hidden=(8,))
    loss = {"binary": "bce", "multiclass": "cross-entropy", "regression": "mse"}[task]
    batch = rows_of(task, weighted=True)
    with no_host_wait():
        make_objective(model, average_members(LOSSES[loss], K))(batch)[0].backward()
        model.eval()(batch)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_forward_and_loss_are_one_graph(task: Any) -> None:
    model = TabM(3, outputs=OUTPUTS[task], task=task, members=K, hidden=(8,), dropout=0.0)
    loss = {"binary": "bce", "multiclass": "cross-entropy", "regression": "mse"}[task]
    objective, batch = make_objective(model, average_members(LOSSES[loss], K)), rows_of(task, weighted=True)
    torch.compiler.reset()
    compiled = torch.compile(objective, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(batch)[0], objective(batch)[0])


def test_bf16_is_the_same_to_its_precision(rows: Callable[..., Batch]) -> None:
    """The layers' products are bfloat16, what is made of the members' outputs is float32."""
    model, batch = TabM(3, [7, 4], 3, task="multiclass", members=K, dropout=0.0, seed=2), rows(40)
    mixed = make_forward("bf16-mixed", model, torch.device("cpu"))
    assert mixed(batch).dtype == torch.bfloat16
    torch.testing.assert_close(mixed(batch).float(), model(batch), rtol=0.05, atol=0.02)
    model.eval()
    assert mixed(batch).dtype == torch.float32
    torch.testing.assert_close(mixed(batch), model(batch), rtol=0.05, atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16-mixed", "fp16-mixed"])
def test_it_trains_in_mixed_precision(precision: str) -> None:
    model = TabM(3, hidden=(16,), members=K, task="binary")
    loader = [rows_of("binary", weighted=False)]
    trainer = Trainer(model, max_epochs=60, loss="bce", precision=precision, device="cpu", progress=False)
    assert trainer.fit(loader, loader).rows[-1]["valid_auc"] > 0.95


def test_the_schema_tells_the_task() -> None:
    fields = [
        Field("x", "float32", role=Role.FEATURE),
        Field("c", "int32", Kind.CATEGORICAL, cardinality=4, role=Role.FEATURE),
    ]
    schema = Schema([*fields, Field("y", "string", role=Role.TARGET, classes=("S", "M", "L"))])
    model = TabM.from_schema(schema, members=2, hidden=8)
    assert (model.task, model.outputs, model.members) == ("multiclass", 3, 2)
    with raises(BadConfig, where="TabM.from_schema", got="task"):
        TabM.from_schema(schema, task="regression")
    with raises(BadConfig, where="TabM.from_schema", got="member", remedy="members="):
        TabM.from_schema(schema, member=2)
    with raises(BadConfig, where="TabM(members=)", got=0):
        TabM.from_schema(schema, members=0)
