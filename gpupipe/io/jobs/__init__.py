"""Writing a dataset: parts, where they go, and the manifest that lists them."""
