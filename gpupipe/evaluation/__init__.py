"""Comparisons of a trained model: baselines on the same rows, and feature importance."""
