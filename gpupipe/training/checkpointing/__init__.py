"""Checkpoints: when a fit saves its state, and how that lies on disk."""
