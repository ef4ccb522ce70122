"""Calls that Python itself refuses, answered in the family's words with the name that was meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

from gpupipe.errors import BadCall, nearest

Answering = TypeVar("Answering", bound=Callable[..., Any])

_ELSEWHERE = {
    "lr": "learning_rate base_lr eta",
    "max_epochs": "n_epochs num_epochs epoch n_iter max_iter",
    "weight_decay": "wd l2 alpha",
    "max_grad_norm": "gradient_clip_val clip_grad clipnorm",
    "accumulate": "accumulate_grad_batches gradient_accumulation_steps",
    "loss": "criterion loss_fn objective",
    "batch_size": "bs batchsize",
    "seed": "random_state random_seed rng",
    "random_state": "seed random_seed",
    "sep": "delimiter separator delim",
    "columns": "usecols include_columns cols",
    "null_values": "na_values",
    "dtypes": "dtype schema schema_overrides",
    "timestamp_formats": "parse_dates date_format",
    "skip_rows": "skiprows",
    "comment": "comment_prefix comment_char",
    "partition_bytes": "chunksize blocksize batch_bytes",
    "filters": "filter where predicate",
    "progress": "verbose enable_progress_bar show_progress",
    "fraction": "frac test_size train_size",
    "ascending": "descending desc reverse",
    "partition_by": "partition_cols",
    "direction": "strategy",
    "hidden": "hidden_size hidden_sizes hidden_dims layers",
    "target": "y label labels target_column label_column",
    "order_by": "sort_by on time date",
    "by": "groupby group_by groups group partition_by over time date",
    "on": "subset by keys",
    "keys": "by on",
    "names": "header has_header",
    "n_estimators": "num_boost_round n_rounds num_rounds nrounds iterations num_iterations",
    "learning_rate": "eta lr shrinkage",
    "max_depth": "depth",
    "early_stopping_rounds": "early_stopping patience",
}
"""What other libraries call an argument, by our name for it."""
_OWNERS = dict.fromkeys(["allow_leak", "keep", "target", "target_transform", "weight"], "gp.Features")
_OWNERS |= dict.fromkeys(["class_weight", "early_stopping", "loss", "lr", "max_epochs", "optimizer"], "gp.Trainer")
"""What takes an argument that steps, pipelines, models and `gp.fit` are given by mistake."""
_INSTEAD = {
    **dict.fromkeys(
        ["fit(drop=)", "fit(exclude=)", "fit(ignore=)"], "train.select([...]), of the columns that are meant"
    ),
    **dict.fromkeys(["JoinAsOf(direction=)", "JoinAsOf(strategy=)"], "Dataset.join_asof(..., direction=...)"),
    "Report.threshold(minimize=)": "cost=(1, 5), what a false positive costs and a false negative",
    "SimpleImputer(missing_values=)": "T.Replace({'x': {-999: None}}) before it",
    "read_csv(delim_whitespace=)": r"gp.from_frame(pandas.read_csv(path, sep=r'\s+'))",
    "Dataset.split(shuffle=)": "by= and at=, for rows in order",
    "Dataset.kfold(shuffle=)": "by= and forward=True, for rows in order",
}
"""What to write where no argument stands for another library's, by the call."""
_BEYOND = {
    "concat": "gp.concat([first, second]), the datasets in a list",
    "Dataset.split": "split((0.8, 0.2)), the shares of all parts in one tuple",
    "Dataset.select": "select(['x', 'y']), the names in a list",
    "Dataset.group_by": "group_by(['x', 'y']), the names in a list",
    "Dataset.sort": "sort(['x', 'y']), the names in a list",
    "Dataset.deduplicate": "deduplicate(['x', 'y']), the names in a list",
    **{f"Scorer.{name}": f"{name}(data), where the target is a column of data" for name in ("evaluate", "predict")},
    "Scorer.predict_proba": "predict_proba(data), of rows without a target or with its column",
}
"""What to write in place of one argument without a name too many, by the call."""


def answer_calls(thing: Answering) -> Answering:
    """Let a function, or the constructor and public methods of a class, answer a call that Python refuses: `BadCall`.

    Signatures stay as they are for type checkers and `inspect.signature`. A call that is right costs one frame.

    Example:
        >>> @answer_calls
        ... def train(rows, *, batch_size=32): ...
        >>> train([], batchsize=64)
        Traceback (most recent call last):
        gpupipe.errors.BadCall: train(batchsize=): no such argument, got 64.
        Expected some of rows, batch_size.
        Try: batch_size=64
    """
    if not isinstance(thing, type):
        return cast(Answering, _answer(thing))
    for name, member in list(vars(thing).items()):
        if name == "__init__" or not name.startswith("_"):
            _replace(thing, name, member)
    return cast(Answering, thing)


def answer_constructor(cls: type) -> None:
    """Let the constructor of a class answer, where it has one of its own; for `__init_subclass__` of base classes."""
    if "__init__" in vars(cls):
        _replace(cls, "__init__", vars(cls)["__init__"])


def check_call(called: str, function: Callable[..., Any], /, *args: Any, **options: Any) -> None:
    """Raise `BadCall` where a function cannot be called so, which `called` hands its options to."""
    try:
        inspect.signature(function).bind(*args, **options)
    except TypeError:
        if answer := _explain(function, args, options, called):
            raise answer from None
        raise


def _replace(cls: type, name: str, member: Any) -> None:
    kind = type(member) if isinstance(member, classmethod | staticmethod) else None
    function = member if kind is None else member.__func__
    if inspect.isfunction(function):
        setattr(cls, name, _answer(function) if kind is None else kind(_answer(function)))


def _answer(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TypeError as error:
            # Where Python refuses the call itself, no frame of the function is in the traceback.
            refused = error.__traceback__ is not None and error.__traceback__.tb_next is None
            answer = _explain(function, args, options) if refused else None
            if answer is None:
                raise
        raise answer

    return call


def _explain(
    function: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any], called: str = ""
) -> BadCall | None:
    """Say what is wrong with a call; None where it is nothing that is known here."""
    parameters = list(inspect.signature(function).parameters.values())
    called, owner = called or function.__name__, type(None)
    if parameters and parameters[0].name in ("self", "cls") and args:
        owner = args[0] if isinstance(args[0], type) else type(args[0])
        called = owner.__name__ if called == "__init__" else f"{owner.__name__}.{called}"
        parameters, args = parameters[1:], args[1:]
    by_name = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    expected = f"some of {', '.join(by_name)}" if by_name else "no argument"
    for name in () if any(each.kind == each.VAR_KEYWORD for each in parameters) else options:
        if name not in by_name:
            takes_mapping = not args and bool(parameters) and str(parameters[0].annotation).startswith("Mapping[")
            remedy = _find_remedy(called, name, options[name], by_name, takes_mapping=takes_mapping)
            problem = "no such argument"
            return BadCall(f"{called}({name}=)", problem, got=options[name], expected=expected, remedy=remedy)
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(args) > len(positional):
        keywords = [each.name for each in parameters if each.kind == each.KEYWORD_ONLY and each.name not in options]
        problem = f"{len(args)} arguments without a name, and it takes {len(positional) or 'none'}"
        remedy = f"{keywords[0]}=... by name" if keywords else f"{called}() with {len(positional) or 'none'}"
        remedy = _BEYOND.get(called, remedy)
        return BadCall(called, problem, got=args[len(positional)], expected=expected, remedy=remedy)
    names = [each.name for each in positional[: len(args)]]
    twice = [name for name in names if name in options]
    if twice:
        problem, remedy = f"argument {twice[0]!r} is there twice", f"{called}({twice[0]}=...)"
        return BadCall(called, problem, got=options[twice[0]], expected="each argument once", remedy=remedy)
    needed = [each for each in parameters if each.default is each.empty and each.name not in (*names, *options)]
    missing = [each.name for each in needed if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    if missing:
        problem, remedy = f"argument {missing[0]!r} is missing", f"{called}({missing[0]}=...)"
        if hasattr(owner, "from_schema"):
            arguments = ", ".join(["schema", *(f"{name}={value!r}" for name, value in options.items())])
            remedy = f"lambda schema: gp.models.{owner.__name__}.from_schema({arguments}) in gp.fit, or pipeline.schema"
        return BadCall(called, problem, expected=expected, remedy=remedy)
    return None


def _find_remedy(called: str, name: str, option: Any, names: Sequence[str], *, takes_mapping: bool) -> str:
    """Write what was meant by an argument that a function with these `names` does not have."""
    if instead := _INSTEAD.get(f"{called}({name}=)"):
        return instead
    near = find_argument(name, names)
    synonyms = _ELSEWHERE.get(near or "", "").split()
    value = repr(option) if isinstance(option, bool | int | float | str) else "..."
    if name in _OWNERS and name not in synonyms:  # it is only spelt nearly so
        return f"{_OWNERS[name]}(..., {name}=...)"
    if near is None and takes_mapping:  # a step that takes its columns by a mapping
        return f"{called}({{{name!r}: {value}}})"
    if near is None:
        return f"what is meant by it among these, or {called}(...) without it"
    if near == "fraction" and name == "test_size" and isinstance(option, float):  # the share of the other rows
        value = repr(round(1 - option, 9))
    elif near == "ascending" and name in synonyms:  # which are its opposites
        value = repr([not each for each in option] if isinstance(option, list) else not option)
    elif near == "names":  # which says by itself that the first line is no header
        value = "['a', 'b', ...]"
    return f"{near}={value}"


def find_argument(name: str, names: Sequence[str]) -> str | None:
    """Find the argument that was meant: another library's name for it, or a name that is spelt nearly so."""
    meant = [key for key, synonyms in _ELSEWHERE.items() if key in names and name.lower() in synonyms.split()]
    return meant[0] if meant else nearest(name, names)
