"""What the three engines are asked to do, so that they do the same."""

from __future__ import annotations

NUMBERS = ["dep_delay", "arr_delay", "air_time", "distance", "fare"]
WHOLE = ["distance", "load"]  # without missing values, which scikit-learn's discretizer, PCA and k-means refuse
TEXTS = ["carrier", "origin", "dest", "tailnum", "flightno", "customer"]
FEW = ["carrier", "origin"]
COMPLETE_TEXTS = ["carrier", "origin", "dest", "flightno"]  # without missing values
TARGET = "arr_delay"
TIME = "sched_ts"
PLANES, WEATHER = ["tailnum", "plane_year", "seats"], ["origin", "time_hour", "temp", "wind_speed"]
JOINED = ["plane_year", "seats", "temp", "wind_speed"]
JOINED_AS_OF = ["temp", "wind_speed"]
PCA_COLUMNS = ["distance", "load", "hour", "month", "day"]

MIN_FREQUENCY = 20
NUM_BUCKETS = 1000
NUM_BINS = 10
NUM_QUANTILES = 1000
SMOOTH = 20.0
STATS = ["mean", "std", "min", "max", "count"]
GROUPED = ["arr_delay", "fare"]
PARTS = ["year", "month", "dayofweek", "hour", "is_weekend"]
CLIP = (-60.0, 600.0)
WINDOW = 3
NUM_COMPONENTS = 3
NUM_CLUSTERS = 8
FLIGHT = r"^([A-Z0-9]{2})"

COLUMNS = sorted({*NUMBERS, *WHOLE, *TEXTS, *PCA_COLUMNS, TARGET, TIME, "time_hour"})
