"""Saved pipelines and models: artifact, manifest and scorer; nothing in them can run code."""
