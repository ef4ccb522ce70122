"""CUDA features of training: captured graphs, activation checkpointing, ranges for profilers."""
