"""The trainer's steps, as `benchmarks/gpu/trainer.py` times them: the batch sizes and ways that time allows."""

from __future__ import annotations

from loader import table
from stage import Stage
from trainer import GATHERED, WAYS, bars, gather_share, of_way

# The most telling first. One that is compiled takes half a minute, so it is tried where there is a bar for it alone.
ASKED = [
    *((batch, way) for batch in (8192, 1024, 131_072) for way in ("eager", "captured")),
    (131_072, "captured, float32"),
    (8192, "captured, 8 steps"),
    (8192, "captured, compiled"),
    *((batch, way) for batch in (65_536, 1_048_576) for way in ("eager", "captured")),
]
COMPILING, STARTING = 40.0, 6.0


def measure(stage: Stage) -> None:
    sizes = {batch if stage.gpu else 32 for batch, _ in ASKED}
    block, _ = table(max(sizes) * (4 if stage.gpu else 8))
    block.words = block.words.to(stage.device)
    gathered = gather_share(block, min(GATHERED, len(block)))
    stage.tell("gather", gathered)
    figures: dict[int, dict[str, dict[str, float]]] = {}
    for batch, way in ASKED if stage.gpu else ASKED[:2]:
        options = WAYS[way] if stage.gpu else WAYS[way] | {"compiled": False}
        name = f"{way}, batch {batch}"
        if not stage.room(name, COMPILING if options.get("compiled") else STARTING):
            continue
        steps = max(16, min(400, (1 << 24) // batch) // 8 * 8) if stage.gpu else 8
        found = of_way(block, batch if stage.gpu else 32, options, steps)
        figures.setdefault(batch, {})[way] = found
        stage.tell(name, found)
        if stage.gpu:
            stage.tell("bars", bars(figures, gathered))
