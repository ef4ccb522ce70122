"""Training by several processes: collectives, failures, fits in other processes."""
