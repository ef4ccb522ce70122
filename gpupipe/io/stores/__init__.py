"""Where files are: finding them, folders with values in their names, object stores and retries."""
