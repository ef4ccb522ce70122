"""The parts of the GPU benchmark: each has `measure(stage)`, which tells the stage what it finds."""
