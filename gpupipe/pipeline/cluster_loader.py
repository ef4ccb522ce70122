"""Distributed training data: each worker of a cluster builds a feature table of its partitions and trains as one rank.

Three rounds of one task per worker: build the blocks, which stay; open a store where the ranks meet; train. The program
itself holds no row, and gets back the weights and the history.
"""

from __future__ import annotations

import itertools
import uuid
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy, deepcopy
from functools import partial
from typing import Any, TypeAlias, Unpack
from urllib.parse import urlsplit

from safetensors.torch import load as tensors_from
from safetensors.torch import save as bytes_of

from gpupipe.cluster.executor import use_executor
from gpupipe.errors import BadConfig, ClusterLost
from gpupipe.io import Dataset, as_dataset
from gpupipe.pipeline.bound_pipeline import BoundPipeline
from gpupipe.pipeline.loader_table import build_table
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.schema import Schema
from gpupipe.support.calls import answer_calls
from gpupipe.tensors import BatchOptions, FeatureTable, Loader
from gpupipe.tensors.order import open_group, open_store

_program, _numbers = uuid.uuid4().hex, itertools.count()
_clusters: weakref.WeakSet[Any] = weakref.WeakSet()
_living: weakref.WeakValueDictionary[str, ClusterLoader] = weakref.WeakValueDictionary()
# In a worker: the blocks that are there for a rank, and the store that is open for the next fit.
_tables: dict[tuple[str, int, int], tuple[FeatureTable, Any, str]] = {}
_stores: list[Any] = []
Loaders: TypeAlias = Callable[[int], Loader]  # by rank


@answer_calls
class ClusterLoader:
    """Loader of a dataset for training on a cluster's workers, each of which builds a block of its partitions.

    Nothing is read before the first fit. The blocks stay for later fits, until no loader needs them any more.

    Args:
        residency: "device" or "host"; "auto" for the first there is room for. `rows`, `dtype` and `out_of_fold`: as in
            `Pipeline.loader`.
        options: of `Loader`: batch_size (of all workers together), shuffle (among each worker's rows), block_rows,
            window, seed, drop_last.

    Raises `BadConfig`: no cluster, `residency="stream"`, or options that make no sense.
    Memory: none here. Each worker: a block of its share, 4 bytes per feature and row, and one partition.

    Example:
        >>> import gpupipe as gp
        >>> flights = gp.read_parquet("data/flights.parquet", partition_bytes=4_000_000).filter("month == 1")
        >>> pipeline = gp.Pipeline([], gp.Features(["distance"], target="carrier == 'UA'")).fit(flights)
        >>> with gp.Cluster(n_workers=2, gpu=False) as cluster:
        ...     train = gp.ClusterLoader(cluster, pipeline, flights, batch_size=4096, shuffle="rows")
        ...     history = gp.Trainer(gp.models.Linear.from_schema(pipeline.schema), max_epochs=1).fit(train)
        >>> len(history)
        1
    """

    def __init__(
        self,
        cluster: Any,
        pipeline: Pipeline,
        data: Any,
        *,
        rows: str | None = None,
        residency: str = "auto",
        dtype: str = "float32",
        out_of_fold: bool | None = None,
        **options: Unpack[BatchOptions],
    ) -> None:
        if not hasattr(cluster, "run_on_each") or residency == "stream":
            problem, got = "no cluster", cluster
            if residency == "stream":
                problem, got = "the workers keep their rows in blocks", "residency='stream'"
            expected = "a cluster, and rows that fit in its workers' memory together"
            remedy = "gp.Cluster(); residency='auto'; or torchrun, where each rank streams"
            raise BadConfig("ClusterLoader", problem, got=got, expected=expected, remedy=remedy)
        self.executor, self._pipeline = cluster, pipeline
        self._dataset, self._rows = as_dataset(data), rows
        self.row_set = pipeline._describe_rows(self._dataset if rows is None else self._dataset.filter(rows))
        for name in options.keys() - BatchOptions.__optional_keys__:
            raise TypeError(f"ClusterLoader has no option {name!r}")
        self._options: dict[str, Any] = {**options, "target_units": pipeline._target_units}
        Loader(FeatureTable.allocate(pipeline.schema, 0, "cpu"), **self._options)  # refuses what makes no sense
        self._table, self._out_of_fold = {"device": "auto", "residency": residency, "dtype": dtype}, out_of_fold
        self._prepared: tuple[BoundPipeline, Dataset] | None = None
        self._key = f"{_program}-{next(_numbers)}"
        _living[self._key] = self
        if cluster not in _clusters:
            _clusters.add(cluster)
            cluster.before_release(partial(_leave, cluster))

    @property
    def schema(self) -> Schema:
        """The schema of the rows."""
        return self._pipeline.schema

    def __iter__(self) -> Iterator[Any]:
        problem = "its rows lie on the workers, and are gone through there"
        remedy = "pipeline.loader(data) for batches in this process"
        raise BadConfig("ClusterLoader", problem, expected="a fit: trainer.fit(loader)", remedy=remedy)

    def fit_on_workers(self, trainer: Any, valid: ClusterLoader | None, resume: Any) -> Any:
        """Fit on the workers there are now, one rank on each; the trainer's model gets the weights.

        Raises:
            ClusterLost: a worker is gone or hangs.
            PartitionFailed, BadData: as `Pipeline.loader`.

        Memory: the weights travel to each worker and back from the first, through this process' memory.
        """
        workers = self.executor.list_workers()
        if not workers:
            raise ClusterLost("Trainer.fit", "no worker is there", expected="one at least", remedy="gp.Cluster()")
        plans = [loader._plan(workers) for loader in (self, valid) if loader is not None]
        (port,) = self.executor.run_on_each(_open_store, {workers[0]: None})
        worker_trainer = copy(trainer)
        if any(tensor.is_cuda for tensor in trainer.model.state_dict().values()):
            worker_trainer.model = deepcopy(trainer.model).cpu()
        address = urlsplit(workers[0]).hostname, port
        train = partial(_train, trainer=worker_trainer, plans=plans, resume=resume, size=len(workers), address=address)
        content, history = self.executor.run_on_each(train, {name: rank for rank, name in enumerate(workers)})[0]
        trainer.model.load_state_dict(tensors_from(content))
        trainer.model.eval()
        return history

    def _plan(self, workers: Sequence[str]) -> Loaders:
        """Build the blocks that are missing; return what builds each rank's loader over that of its worker."""
        backend, size = self.executor.resolve(self._pipeline.backend), len(workers)
        if self._prepared is None:
            # The columns of steps that look at other rows are made of all rows, before anybody takes a share.
            with use_executor(self.executor):
                self._prepared = self._pipeline._bind_to_train(
                    self._dataset, self._out_of_fold, backend, rows=self._rows
                )
        run, dataset = self._prepared
        shares = {
            name: (rank, dataset.of_partitions(dataset.partitions[rank::size])) for rank, name in enumerate(workers)
        }
        settings = {"key": self._key, "size": size, "run": run, "backend": backend, "table": self._table}
        rows = self.executor.run_on_each(partial(_build, **settings, program=_program, keys=set(_living)), shares)
        return partial(_open_loader, key=self._key, rows=rows, options=self._options)


def _open_loader(rank: int, *, key: str, rows: list[int], options: Mapping[str, Any]) -> Loader:
    """Build the loader of one rank over the block that its worker holds."""
    size = len(rows)
    block, device, residency = _tables[key, rank, size]
    return Loader(block, rank=rank, world_size=size, sharded=rows, device=device, residency=residency, **options)


def _build(
    item: tuple[int, Dataset],
    *,
    key: str,
    size: int,
    run: BoundPipeline,
    backend: str,
    table: Mapping[str, Any],
    program: str,
    keys: set[str],
) -> int:
    """Build the block of a rank in its worker, and return its number of rows; unused blocks make room."""
    rank, share = item
    _drop(None, program=program, keys=keys)
    if (key, rank, size) not in _tables:
        block, device, residency = build_table(run, share, backend, **table)
        if not isinstance(block, FeatureTable):
            problem = "a worker's share does not fit in its memory"
            expected = "rows that fit in the workers' memory together"
            remedy = "more workers, dtype='bfloat16', or torchrun, where each rank streams"
            raise BadConfig("ClusterLoader", problem, expected=expected, remedy=remedy)
        _tables[key, rank, size] = block, device, residency
    return len(_tables[key, rank, size][0])


def _drop(_: None, *, program: str, keys: Collection[str] = ()) -> None:
    for key in [key for key in _tables if key[0].startswith(program) and key[0] not in keys]:
        del _tables[key]


def _leave(cluster: Any) -> None:
    cluster.run_on_each(partial(_drop, program=_program), dict.fromkeys(cluster.list_workers()))


def _open_store(_: None) -> int:
    """In the first worker: a store where the ranks meet, and its port."""
    _stores[:] = [open_store(timeout=60.0)]
    return int(_stores[0].port)


def _train(
    rank: int, *, trainer: Any, plans: Sequence[Loaders], resume: Any, size: int, address: tuple[str, int]
) -> tuple[bytes, Any] | None:
    """Train as one rank in a worker; the first rank returns the weights and the history."""
    with ExitStack() as stack:
        if size > 1:
            store = _stores.pop() if rank == 0 else open_store(address, timeout=60.0)
            stack.enter_context(open_group(store, rank, size, trainer.timeout))
        train, valid = [*(plan(rank) for plan in plans), None][:2]
        history = trainer.fit(train, valid, resume=resume)
    if rank:
        return None
    # Tied weights share memory, which safetensors does not write.
    weights = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in trainer.model.state_dict().items()}
    return bytes_of(weights), history
