"""CuPy on NumPy: each function and method is bound to CuPy's own signature first, and CuPy's refusals are kept.

Refused, as on the device: functions CuPy lacks, host arrays among its arguments, NumPy functions given its arrays,
implicit copies to the host, dtypes it does not have. Refused here although CuPy would allow it: `get`, `tolist`,
iteration and host arrays as indices, because the library has one door to the host (`asnumpy` in `Backend.to_host`). A
weighted `bincount` adds in another order each time.
"""

from __future__ import annotations

import warnings
from types import ModuleType, SimpleNamespace
from typing import Any

import cupy as real
import numpy as np

from .signatures import check, not_imitated

_threads = np.random.default_rng(1)  # atomics add in the order in which threads happen to come
_FROM_HOST = {"array", "asarray", "asanyarray"}
_BEHIND_THE_DOOR = {"get", "tolist", "tobytes", "tofile", "dump", "dumps"}


class DeviceArray:
    """Stands in for `cupy.ndarray`; `host` is the memory underneath, for tests alone."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, host: Any) -> None:
        host = np.asarray(host)
        if host.dtype.kind not in "biufc":
            raise TypeError(f"Unsupported dtype {host.dtype}")
        self.host = host

    def __getattr__(self, name: str) -> Any:
        if name == "host" or not hasattr(real.ndarray, name):
            raise AttributeError(f"'cupy.ndarray' object has no attribute {name!r}")
        if name in _BEHIND_THE_DOOR:
            raise TypeError(f"cupy.ndarray.{name} copies to the host: only Backend.to_host may")
        if not callable(getattr(real.ndarray, name)):
            return _device(getattr(self.host, name))
        return lambda *args, **kwargs: _called(
            f"ndarray.{name}", getattr(real.ndarray, name), getattr(self.host, name), args, kwargs, method=True
        )

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.host.ctypes.data)

    def __getitem__(self, index: Any) -> DeviceArray:
        return DeviceArray(self.host[_host(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.host[_host(index)] = _host(value)

    def __len__(self) -> int:
        return len(self.host)

    def __iter__(self) -> Any:
        if self.host.ndim < 2:
            raise TypeError("iterating over a device array's values copies them one by one to the host")
        return iter([self[row] for row in range(len(self))])

    def __bool__(self) -> bool:
        return bool(self.host)

    def __int__(self) -> int:
        return int(self.host)

    def __float__(self) -> float:
        return float(self.host)

    def __repr__(self) -> str:
        return f"device {self.host!r}"

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __array_function__(self, function: Any, *rest: Any) -> Any:
        raise TypeError(f"numpy.{function.__name__} on a device array: the same of backend.xp is meant")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or not any(isinstance(value, np.generic) for value in inputs):
            raise TypeError(f"numpy.{ufunc.__name__} on a device array: the same of backend.xp is meant")
        return _device(ufunc(*_host(inputs), **kwargs))  # a NumPy scalar stood on the left of an operator

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.host.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.host.__dlpack_device__()


def _operator(name: str) -> Any:
    def apply(self: DeviceArray, *others: Any) -> Any:
        if any(isinstance(other, (list, tuple)) for other in others):
            raise TypeError(f"Unsupported type {type(others[0])}")
        with np.errstate(all="ignore"):
            result = getattr(self.host, name)(*_host(others))
        return result if result is NotImplemented else self if result is self.host else _device(result)

    return apply


_OPERATORS = (
    "add",
    "and",
    "divmod",
    "floordiv",
    "lshift",
    "matmul",
    "mod",
    "mul",
    "or",
    "pow",
    "rshift",
    "sub",
    "truediv",
    "xor",
)
_ALONE = ("eq", "ge", "gt", "le", "lt", "ne", "abs", "invert", "neg", "pos")
for _name in (*_OPERATORS, *(f"i{name}" for name in _OPERATORS), *(f"r{name}" for name in _OPERATORS), *_ALONE):
    if hasattr(real.ndarray, f"__{_name}__"):
        setattr(DeviceArray, f"__{_name}__", _operator(f"__{_name}__"))


class Module(ModuleType):
    """A module of CuPy whose functions run NumPy's of the same name."""

    def __init__(self, original: ModuleType, host: Any, **own: Any) -> None:
        super().__init__(original.__name__)
        self._original, self._numpy, self._own = original, host, own

    def __getattr__(self, name: str) -> Any:
        if name in self._own:
            return self._own[name]
        path = f"{self.__name__}.{name}"
        if name.startswith("__") or not hasattr(self._original, name):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        original = getattr(self._original, name)
        if original is getattr(self._numpy, name, None) or (
            not callable(original) and not isinstance(original, ModuleType)
        ):
            return original  # dtypes and constants are NumPy's own
        if not callable(original) or not hasattr(self._numpy, name):
            raise not_imitated(self.__name__, self._original, name)
        return Function(path, original, getattr(self._numpy, name))


class Function:
    """A function or ufunc of CuPy, `cupy.add.at` included."""

    def __init__(self, path: str, original: Any, host: Any) -> None:
        self._path, self._original, self._numpy = path, original, host
        self.__name__ = path.rpartition(".")[2]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.__name__ == "lexsort" and not isinstance(args[0], DeviceArray):
            raise TypeError("cupy.lexsort takes one two-dimensional array of keys")
        if self.__name__ == "clip" and not isinstance(args[0], DeviceArray):
            raise AttributeError(f"{type(args[0]).__name__!r} object has no attribute 'clip'")  # it calls its method
        if self.__name__ == "bincount" and kwargs.get("minlength", 0) is None:
            del kwargs["minlength"]
        if self.__name__ == "bincount" and kwargs.get("weights") is not None:
            shuffled = _threads.permutation(len(args[0]))
            args, kwargs = (
                (args[0][DeviceArray(shuffled)],),
                {
                    **kwargs,
                    "weights": kwargs["weights"][DeviceArray(shuffled)],
                },
            )
        return _called(self._path, self._original, self._numpy, args, kwargs, from_host=self.__name__ in _FROM_HOST)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(self._original, name):
            raise AttributeError(f"{self._path} has no attribute {name!r}")
        return Function(f"{self._path}.{name}", getattr(self._original, name), getattr(self._numpy, name))


def _called(
    path: str, original: Any, host: Any, args: Any, kwargs: Any, *, method: bool = False, from_host: bool = False
) -> Any:
    check(f"cupy.{path}" if method else path, original, args, kwargs, method=method)
    if from_host:
        fresh = not isinstance(args[0], DeviceArray)
        args, kwargs = (_unwrapped(args[0]), *args[1:]), {"copy": True, **kwargs} if fresh else kwargs
    else:
        args, kwargs = _host(args), {name: _host(value) for name, value in kwargs.items()}
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return _device(host(*args, **kwargs))


def _unwrapped(value: Any) -> Any:
    return value.host if isinstance(value, DeviceArray) else value


def _host(value: Any) -> Any:
    """Arguments as NumPy's; a host array among them is refused as on the device."""
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, (tuple, list)):
        return type(value)(_host(item) for item in value)
    return _unwrapped(value)


def _device(value: Any) -> Any:
    """Results as the device's: arrays, and what NumPy gives as scalars, arrays without dimension."""
    if isinstance(value, (tuple, list)):
        return type(value)(*(map(_device, value))) if hasattr(value, "_fields") else type(value)(map(_device, value))
    return DeviceArray(value) if isinstance(value, (np.ndarray, np.generic)) else value


def _asnumpy(array: Any, **kwargs: Any) -> Any:
    check("cupy.asnumpy", real.asnumpy, (array,), kwargs)
    return np.array(_unwrapped(array))


def _from_dlpack(array: Any, **kwargs: Any) -> DeviceArray:
    check("cupy.from_dlpack", real.from_dlpack, (array,), kwargs)
    return DeviceArray(np.from_dlpack(array))


def _runtime(name: str, value: Any = None) -> Any:
    def call(*args: Any) -> Any:
        check(f"cupy.cuda.runtime.{name}", getattr(real.cuda.runtime, name), args, {})
        return value

    return call


_runtime_calls = {name: _runtime(name) for name in ("memPoolTrimTo", "memPoolSetAttribute", "deviceSynchronize")}
runtime = Module(
    real.cuda.runtime,
    None,
    getDevice=_runtime("getDevice", 0),
    deviceGetDefaultMemPool=_runtime("deviceGetDefaultMemPool", 77),
    **_runtime_calls,
)
cuda = Module(real.cuda, None, runtime=runtime)
cupy = Module(
    real,
    np,
    ndarray=DeviceArray,
    asnumpy=_asnumpy,
    from_dlpack=_from_dlpack,
    cuda=cuda,
    linalg=Module(real.linalg, np.linalg),
)


def __getattr__(name: str) -> Any:
    """This module is that of `DeviceArray`, as `cupy` is that of `cupy.ndarray`, where code looks for functions."""
    return getattr(cupy, name)
