"""File formats, one module each, and the source that cuts their files into partitions."""
