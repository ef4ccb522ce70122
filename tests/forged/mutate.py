"""Damage to bytes, JSON and tensors, drawn by chance: what a forger, a bad disk or another version leaves."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

Draw = np.random.Generator
_DEEP = "[" * 300 + "]" * 300  # read by the parser, too deep for much else
_NESTED = "[" * 50_000 + "]" * 50_000
_WORDS = ["null", "[]", "{}", '"x"', "-1", "0", "1", "true", "1e400", "NaN", "1e300", "2.5", "4294967296", '"../x"']
_WORDS += [_DEEP, _NESTED, "9" * 5_000, r'"\ud800"', '"\\u0000"', "[null]", "[[0]]", '{"$array": "array0"}', ""]
_NUMBERS = [-(2**63), -(2**31), -2, -1, 0, 1, 2, 7, 8, 255, 256, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1]
_FLOATS = [float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 3.4e38, 5e-324, 0.0, -1.0]


def damage_bytes(content: bytes, draw: Draw) -> bytes:
    """Change one to three places: bits, bytes, little-endian numbers, pieces that are cut, doubled or swapped."""
    for _ in range(int(draw.integers(1, 4))):
        if not content:
            return b"\0"
        place = int(draw.integers(len(content)))
        if draw.random() < 0.5:  # footers and headers have the lengths and offsets
            place = len(content) - 1 - min(int(draw.exponential(200)), len(content) - 1)
        end = place + int(draw.integers(1, 64))
        match int(draw.integers(7)):
            case 0:
                piece = bytes([content[place] ^ 1 << int(draw.integers(8))])
                content = content[:place] + piece + content[place + 1 :]
            case 1:
                content = content[:place] + draw.bytes(end - place) + content[end:]
            case 2 | 3:
                size, start = (4, 8)[int(draw.integers(2))], place & ~3
                number = int(draw.choice(np.array(_NUMBERS, dtype=object))) & (1 << 8 * size) - 1
                content = content[:start] + struct.pack("<Q", number)[:size] + content[start + size :]
            case 4:
                content = content[:place] + content[end:]
            case 5:
                content = content[:end] + content[place:]
            case _:
                content = content[: place if draw.random() < 0.3 else -int(draw.integers(1, 16))]
    return content


def damage_json(content: bytes, draw: Draw) -> bytes:
    """Put one to three values in the place of others, leave them out, or damage a number or a text a little."""
    for _ in range(int(draw.integers(1, 4))):
        try:
            outer = [json.loads(content)]
        except (RecursionError, ValueError):
            return content
        paths = list(_iter_paths(outer[0]))
        parent: Any = outer
        key: Any = 0
        for step in paths[int(draw.integers(len(paths)))]:
            parent, key = parent[key], step
        value, word = parent[key], _WORDS[int(draw.integers(len(_WORDS)))]
        if draw.random() < 0.4 and isinstance(value, str | int | float):
            word = json.dumps(_alter(value, draw))
        if word or parent is outer:
            parent[key] = "<here>"
        else:
            del parent[key]
        content = json.dumps(outer[0]).replace('"<here>"', word).encode()
    return content


def _alter(value: str | float, draw: Draw) -> Any:
    if isinstance(value, str):
        return [value + "x", value[:-1], value.upper(), "", f"../{value}", value[::-1]][int(draw.integers(6))]
    return [value + 1, value - 1, -value, value * 1000, 0, str(value), [value], None][int(draw.integers(8))]


def _iter_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _iter_paths(item, (*path, key))


def damage_tensors(content: bytes, draw: Draw) -> bytes:
    """Change one to three tensors of a safetensors file: values, lengths, types, shapes, names; or its header."""
    size = struct.unpack("<Q", content[:8])[0]
    if draw.random() < 0.2:
        header = damage_json(content[8 : 8 + size], draw)
        return struct.pack("<Q", len(header)) + header + content[8 + size :]
    from safetensors.numpy import load, save

    arrays = dict(sorted(load(content).items()))  # which come in any order
    for _ in range(int(draw.integers(1, 4))):
        if not arrays:
            break
        name = str(draw.choice([*arrays]))
        values = arrays[name].copy()
        place = int(draw.integers(max(values.size, 1)))
        match int(draw.integers(9)):
            case 0 | 1 | 2 if values.size and values.dtype.kind in "fiub":
                choices: list[Any] = _FLOATS if values.dtype.kind == "f" else _NUMBERS
                number = choices[int(draw.integers(len(choices)))]
                with np.errstate(all="ignore"):
                    cast = np.array([number], dtype=np.float64 if values.dtype.kind == "f" else object)
                    bits = 8 * values.dtype.itemsize
                    one = cast.astype(values.dtype) if values.dtype.kind == "f" else int(cast[0]) & (1 << bits) - 1
                if values.dtype.kind == "f":
                    values.reshape(-1)[place] = one[0]
                else:
                    values.reshape(-1).view(f"u{values.dtype.itemsize}")[place] = one
                arrays[name] = values
            case 3:
                arrays[name] = values[:place] if values.ndim else values[None]
            case 4:
                arrays[name] = np.concatenate([values, values[:1]]) if values.ndim else values
            case 5:
                arrays[name] = values.astype([np.int64, np.float64, np.uint8, np.int32, np.float32][place % 5])
            case 6:
                arrays[name] = values[None] if draw.random() < 0.5 else values.T.copy()
            case 7:
                del arrays[name]
            case _:
                bits_ = draw.bytes(values.nbytes)
                arrays[name] = np.frombuffer(bits_, dtype=values.dtype).reshape(values.shape)
    return save({name: np.ascontiguousarray(values) for name, values in arrays.items()})
