"""Mergeable summaries of partitions: moments, counts, quantiles, covariance and others that fits add up."""
