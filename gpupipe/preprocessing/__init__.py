"""Room 3: from a frame to feature columns, by steps whose state is learned in a fold over partitions."""

from gpupipe.preprocessing.categorify import Categorify
from gpupipe.preprocessing.fold import Columns, FoldStep, Invertible, Summary
from gpupipe.preprocessing.imputer import SimpleImputer
from gpupipe.preprocessing.kmeans import KMeans
from gpupipe.preprocessing.pca import PCA
from gpupipe.preprocessing.scalers import MinMaxScaler, RobustScaler, StandardScaler
from gpupipe.preprocessing.whole_frame import WholeFrame, WholeFrameStep

__all__ = [
    "PCA",
    "Categorify",
    "Columns",
    "FoldStep",
    "Invertible",
    "KMeans",
    "MinMaxScaler",
    "RobustScaler",
    "SimpleImputer",
    "StandardScaler",
    "Summary",
    "WholeFrame",
    "WholeFrameStep",
]
