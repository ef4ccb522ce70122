"""Between preprocessing and tensors: a pipeline and its features, from plan and fit to a loader."""
