"""Comparisons of models on equal terms, and feature importance."""
