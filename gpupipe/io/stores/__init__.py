"""File storage: file discovery, Hive partitioning, object stores and retries."""
