"""Callbacks of a fit and their results: history, logs, GPU statistics, profiles."""
