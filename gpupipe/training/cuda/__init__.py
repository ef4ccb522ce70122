"""What CUDA adds to training: captured graphs, recomputed activations, ranges for profilers."""
