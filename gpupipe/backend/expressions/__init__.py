"""Values of expressions over the columns of a frame, with missing values; the same on both backends."""
