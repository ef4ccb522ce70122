"""Fused GPU kernel that computes and writes whole rows of the feature table."""
