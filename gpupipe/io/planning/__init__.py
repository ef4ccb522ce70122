"""Partitions of a dataset, and what of them is read: queries, row filters, statistics, splits."""
