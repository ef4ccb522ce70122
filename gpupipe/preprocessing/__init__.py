"""Room 3: from a frame to feature columns, by steps whose state is learned in a fold over partitions."""

from gpupipe.preprocessing.bins import Bucketize, KBinsDiscretizer
from gpupipe.preprocessing.categorify import Categorify
from gpupipe.preprocessing.count_encoder import CountEncoder
from gpupipe.preprocessing.cross_fitted import CrossFittedStep
from gpupipe.preprocessing.datetime_encoder import DatetimeEncoder
from gpupipe.preprocessing.downcast import Downcast
from gpupipe.preprocessing.fold import Columns, FoldStep, Invertible, Summary
from gpupipe.preprocessing.group_imputer import GroupImputer
from gpupipe.preprocessing.group_stats import GroupStats
from gpupipe.preprocessing.hashed import HashBucket, HashedCross
from gpupipe.preprocessing.imputer import SimpleImputer
from gpupipe.preprocessing.kmeans import KMeans
from gpupipe.preprocessing.list_slice import ListSlice
from gpupipe.preprocessing.log1p import Log1p
from gpupipe.preprocessing.ngrams import HashedNgrams
from gpupipe.preprocessing.normalizer import Normalizer
from gpupipe.preprocessing.one_hot import OneHotEncoder
from gpupipe.preprocessing.ordinal import OrdinalEncoder
from gpupipe.preprocessing.pca import PCA, IncrementalPCA
from gpupipe.preprocessing.power_transformer import PowerTransformer
from gpupipe.preprocessing.quantile_transformer import QuantileTransformer
from gpupipe.preprocessing.scalers import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler
from gpupipe.preprocessing.selection import CorrelationThreshold, VarianceThreshold
from gpupipe.preprocessing.stateless import StatelessStep
from gpupipe.preprocessing.svd import TruncatedSVD
from gpupipe.preprocessing.target_encoder import TargetEncoder
from gpupipe.preprocessing.whole_frame import WholeFrame, WholeFrameStep

__all__ = [
    "PCA",
    "Bucketize",
    "Categorify",
    "Columns",
    "CorrelationThreshold",
    "CountEncoder",
    "CrossFittedStep",
    "DatetimeEncoder",
    "Downcast",
    "FoldStep",
    "GroupImputer",
    "GroupStats",
    "HashBucket",
    "HashedCross",
    "HashedNgrams",
    "IncrementalPCA",
    "Invertible",
    "KBinsDiscretizer",
    "KMeans",
    "ListSlice",
    "Log1p",
    "MaxAbsScaler",
    "MinMaxScaler",
    "Normalizer",
    "OneHotEncoder",
    "OrdinalEncoder",
    "PowerTransformer",
    "QuantileTransformer",
    "RobustScaler",
    "SimpleImputer",
    "StandardScaler",
    "StatelessStep",
    "Summary",
    "TargetEncoder",
    "TruncatedSVD",
    "VarianceThreshold",
    "WholeFrame",
    "WholeFrameStep",
]
