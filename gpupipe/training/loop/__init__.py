"""The training loop: trainer, its build, one update, losses, metrics and evaluation."""
