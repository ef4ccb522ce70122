"""The jobs of `operators.py`, by engine: each module has `load(folder)`, `JOBS` by operator, and `columns(result)`."""
