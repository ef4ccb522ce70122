"""The version of gpupipe."""

__version__ = "0.1.0"
