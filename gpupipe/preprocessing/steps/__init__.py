"""Learned steps for users, one file each."""
