"""The trainer's steps, as `benchmarks/gpu/trainer.py` times them: the batch sizes and ways that time allows."""

from __future__ import annotations

from typing import Any

from loader import table
from stage import Stage
from trainer import GATHERED, WAYS, bars, gather_share, of_way

# The most telling first. One that is compiled takes half a minute: all but the first where time is left at the end.
ASKED = [
    *((batch, way) for batch in (8192, 1024, 131_072) for way in ("eager", "captured")),
    (131_072, "captured, float32"),
    (8192, "captured, 8 steps"),
    (8192, "captured, compiled"),
    *((batch, way) for batch in (65_536, 1_048_576, 262_144) for way in ("eager", "captured")),
    *((batch, "captured, 8 steps") for batch in (1024, 131_072)),
    (8192, "compiled"),
    *((batch, way) for batch in (1024, 131_072) for way in ("captured, compiled", "compiled")),
]
COMPILING, STARTING = 40.0, 6.0


def measure(stage: Stage) -> None:
    sizes = {batch if stage.gpu else 32 for batch, _ in ASKED}
    block, _ = table(max(sizes) * (4 if stage.gpu else 8))
    block.words = block.words.to(stage.device)
    gathered = gather_share(block, min(GATHERED, len(block)))
    stage.tell("gather", gathered)
    figures: dict[int, dict[str, dict[str, Any]]] = {}
    for batch, way in ASKED if stage.gpu else ASKED[:2]:
        options = WAYS[way] if stage.gpu else WAYS[way] | {"compiled": False}
        name = f"{way}, batch {batch}"
        if not stage.room(name, COMPILING if options.get("compiled") else STARTING):
            continue
        steps = max(16, min(400, (1 << 24) // batch) // 8 * 8) if stage.gpu else 8
        size = batch if stage.gpu else 32
        found = stage.tried(lambda size=size, options=options, steps=steps: of_way(block, size, options, steps))
        stage.tell(name, found)
        if "failed" not in found:
            figures.setdefault(batch, {})[way] = found
        if stage.gpu:
            stage.tell("bars", bars(figures, gathered))
