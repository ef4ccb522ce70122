"""What every part of the package stands on: the standard library, and our errors."""

__all__: list[str] = []
