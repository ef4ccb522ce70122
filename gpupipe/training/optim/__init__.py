"""Optimisers, learning rate schedules, loss scaling and averages of weights."""
