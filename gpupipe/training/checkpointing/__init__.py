"""Checkpoints: when a fit saves its state, and the format on disk."""
