"""Loops that Numba compiles once on a machine; their machine code is kept, and other processes load it without Numba.

Numba takes 0.7 s of a process until its first loop runs from its own cache, and llvmlite 0.05 s to load machine code.
A loop writes into C-contiguous arrays that it is given and returns an integer. It can neither allocate nor raise nor
call a library, for that needs Numba at run time; what would is refused when it is compiled. It runs without the GIL.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import struct
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, wraps
from importlib import import_module
from inspect import isfunction
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

import numpy as np

from gpupipe.support.collector import pause_collector

Loop: TypeAlias = Callable[..., Any]
# The dtype and the dimensions of an array, or the format of a number, by which `struct` packs it.
_Kind: TypeAlias = "tuple[np.dtype[Any], int] | str"

_ENTRY = "loop"
_DIGEST_BYTES = 32  # behind the machine code in a file
_NUMBERS = {"q": np.dtype("int64"), "Q": np.dtype("uint64"), "d": np.dtype("float64")}
_one_at_a_time = Lock()  # or threads that meet at a loop would each compile their own
_preparations: list[Callable[[Any], object]] = []


def compile_loop(*relaxed: str) -> Callable[[Loop], Loop]:
    """Compile a function on its first call; the rules of float arithmetic that LLVM may relax are named."""

    def decorate(function: Loop) -> Loop:
        machine_code: dict[tuple[_Kind, ...], tuple[Callable[[bytes], int], struct.Struct]] = {}

        @wraps(function)
        def run(*arguments: Any) -> int:
            kinds = tuple(map(_get_kind, arguments))
            if kinds not in machine_code:
                with _one_at_a_time, pause_collector():
                    if kinds not in machine_code:
                        machine_code[kinds] = _load(function, relaxed, kinds), _make_packer(kinds)
            call, packer = machine_code[kinds]
            words: list[Any] = []
            for argument in arguments:
                if isinstance(argument, np.ndarray):
                    words.append(argument.__array_interface__["data"][0])
                    words.extend(argument.shape)
                else:
                    words.append(argument)
            return call(packer.pack(*words))

        return run

    return decorate


def inline(function: Loop) -> Loop:
    """Let compiled loops call a function."""
    prepare(lambda extending: extending.register_jitable(function))
    return function


def prepare(preparation: Callable[[Any], object]) -> None:
    """Have `numba.extending` prepared before the next loop is compiled."""
    _preparations.append(preparation)


def _get_kind(argument: Any) -> _Kind:
    if isinstance(argument, np.ndarray):
        if not argument.flags.c_contiguous:
            raise ValueError("a compiled loop takes C-contiguous arrays")
        return argument.dtype, argument.ndim
    if isinstance(argument, np.uint64):
        return "Q"
    return "d" if isinstance(argument, float) else "q"


def _make_packer(kinds: Sequence[_Kind]) -> struct.Struct:
    """Pack arguments as 64-bit words: of an array its address and its shape."""
    return struct.Struct("=" + "".join(kind if isinstance(kind, str) else "q" * (1 + kind[1]) for kind in kinds))


def _load(function: Loop, relaxed: Sequence[str], kinds: Sequence[_Kind]) -> Callable[[bytes], int]:
    """Load the machine code of a loop for these arguments, compiled first if no process has kept it."""
    llvm = import_module("llvmlite.binding")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    chip = {"cpu": llvm.get_host_cpu_name(), "features": llvm.get_host_cpu_features().flatten()}
    machine = llvm.Target.from_default_triple().create_target_machine(**chip, opt=3, jit=True)
    functions = [function, *map(function.__globals__.get, function.__code__.co_names)]
    sources = sorted({item.__code__.co_filename for item in functions if isfunction(item)})
    texts = [Path(path).read_bytes() for path in sources]
    stamp = [import_module("llvmlite").__version__, chip, texts, sorted(relaxed), kinds]
    source = Path(function.__code__.co_filename)
    name = f"{source.stem}.{function.__name__}-{hashlib.sha256(repr(stamp).encode()).hexdigest()[:16]}.o"
    folders = _list_folders(source)
    code = next(filter(None, (_read(folder / name) for folder in folders)), b"")
    if not code:
        code = machine.emit_object(_compile(function, relaxed, kinds, machine))
        _keep(code, name, folders)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    call: Any = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p)(engine.get_function_address(_ENTRY))
    call.engine = engine  # whose memory it is in
    return call  # type: ignore[no-any-return]


def _list_folders(source: Path) -> list[Path]:
    """List the folders for machine code: the user's own choice, or beside the byte code, or else in the home."""
    if folder := os.environ.get("NUMBA_CACHE_DIR"):
        return [Path(folder)]
    return [source.parent / "__pycache__", Path(os.environ.get("HOME", os.devnull), ".cache", "gpupipe")]


def _read(path: Path) -> bytes:
    """Read machine code that was kept; none where the file is not there, or not whole."""
    content = path.read_bytes() if path.exists() else b""
    code, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else b""


def _keep(code: bytes, name: str, folders: Sequence[Path]) -> None:
    """Keep machine code in the first folder that can be written to, if there is one."""
    for folder in folders:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            draft = folder / f".{name}.{uuid.uuid4().hex}"
            try:
                draft.write_bytes(code + hashlib.sha256(code).digest())
                draft.replace(folder / name)
            finally:
                draft.unlink(missing_ok=True)
            return


def _compile(function: Loop, relaxed: Sequence[str], kinds: Sequence[_Kind], machine: Any) -> Any:
    """Compile a loop to a module of LLVM with one function, of the words that `_make_packer` packs."""
    numba, llvm, extending = _import_numba(), import_module("llvmlite.binding"), import_module("numba.extending")
    ir, types = import_module("llvmlite.ir"), numba.types
    while _preparations:
        _preparations.pop()(extending)
    carray, loop = numba.carray, numba.njit(fastmath=set(relaxed), error_model="numpy")(function)

    def get_type(kind: _Kind) -> Any:
        if isinstance(kind, str):
            return numba.from_dtype(_NUMBERS[kind])
        return types.Array(numba.from_dtype(kind[0]), kind[1], "C")

    arguments = types.Tuple(list(map(get_type, kinds)))

    def view(start: Any, shape: Any) -> Any:
        return carray(start, shape)

    @extending.intrinsic  # type: ignore[untyped-decorator]
    def unpack(_: Any, words: Any) -> Any:
        def load(context: Any, builder: Any, _: Any, values: Any) -> Any:
            positions = iter(range(_make_packer(kinds).size // 8))

            def load_word(kind: Any) -> Any:
                address = builder.gep(values[0], [ir.IntType(64)(next(positions))])
                return builder.load(builder.bitcast(address, context.get_value_type(kind).as_pointer()))

            def load_argument(kind: Any) -> Any:
                if not isinstance(kind, types.Array):
                    return load_word(kind)
                pointer, shape = types.CPointer(kind.dtype), types.UniTuple(types.intp, kind.ndim)
                address = load_word(pointer)
                sizes = context.make_tuple(builder, shape, [load_word(types.intp) for _ in range(kind.ndim)])
                return context.compile_internal(builder, view, kind(pointer, shape), (address, sizes))

            return context.make_tuple(builder, arguments, [load_argument(kind) for kind in arguments])

        return arguments(words), load

    entry = numba.cfunc(types.int64(types.CPointer(types.int64)))(lambda words: loop(*unpack(words)))
    module = llvm.parse_assembly(entry.inspect_llvm())
    module.get_function(entry.native_name).name = _ENTRY
    if calls := _remove_calls(module, machine):
        raise TypeError(f"{function.__name__} allocates, raises, or needs a library: it calls {', '.join(calls)}")
    return module


def _remove_calls(module: Any, machine: Any) -> list[str]:
    """Have LLVM remove what reports errors where none can occur; return the calls that are left of what it has not."""
    llvm = import_module("llvmlite.binding")
    for item in module.functions:
        if not item.is_declaration and item.name != _ENTRY:
            item.linkage = "internal"
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    passes.getModulePassManager().run(module, passes)
    return [item.name for item in module.functions if item.is_declaration and not item.name.startswith("llvm.")]


@cache
def _import_numba() -> Any:
    """Import Numba, which takes half a second."""
    # While it compiles, Numba logs thousands of debug lines. A level that somebody has set stays.
    if logging.getLogger("numba").level == logging.NOTSET:
        logging.getLogger("numba").setLevel(logging.INFO)
    return import_module("numba")
