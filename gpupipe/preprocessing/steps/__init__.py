"""Learned steps for users; steps of one idea share a file."""
