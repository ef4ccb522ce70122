"""What is in a table, column by column: mergeable summaries of partitions, and the report drawn from them."""
