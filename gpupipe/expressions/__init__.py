"""Expression language of `Filter`, `Derive`, `target=` and `weight=`: Python's syntax over columns, never executed.

    columns       dep_delay, col("dep delay") for a name that is no identifier
    constants     15, 2.5, "JFK", True, timestamp("2013-10-01"), None in where(condition, x, None)
    arithmetic    + - * / // % ** and unary -
    comparisons   == != < <= > >=, chained too: 6 <= hour < 22; origin in ["JFK", "LGA"], not in
    conditions    and, or, not
    functions     those of `functions.FUNCTIONS`

A missing value makes what is computed from it missing; conditions follow Kleene: false and missing is false, true or
missing is true. Arithmetic on integers gives int64, and a result that does not fit is an error; `//` and `%` by zero
are missing; `/` gives a float. A float that is NaN is missing, infinity is a value. float32 stays float32 with itself
and constants. A comparison with a constant is exact, whatever the column is stored as, and so is one of integer
columns; with a float column, integers are float64. A time minus a time is float64 seconds. True counts 1 in
arithmetic.
"""

from __future__ import annotations

from gpupipe.expressions.expression import Expression, parse, parse_label

__all__ = ["Expression", "parse", "parse_label"]
