"""Callbacks of a fit, and what they leave: history, logs, statistics of the GPU, profiles."""
