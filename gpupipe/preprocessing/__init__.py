"""Preprocessing: steps from a frame to feature columns, whose state is learned by merging summaries of partitions."""

from gpupipe.preprocessing.cross_fitted import CrossFittedStep
from gpupipe.preprocessing.gathered import EstimatorStep, GatheredStep
from gpupipe.preprocessing.learned_step import Columns, Invertible, LearnedStep, StatelessStep, Summary
from gpupipe.preprocessing.steps.bins import Bucketize, KBinsDiscretizer
from gpupipe.preprocessing.steps.categorify import Categorify
from gpupipe.preprocessing.steps.count_encoder import CountEncoder
from gpupipe.preprocessing.steps.datetime_encoder import DatetimeEncoder
from gpupipe.preprocessing.steps.downcast import Downcast
from gpupipe.preprocessing.steps.feature_selection import CorrelationThreshold, VarianceThreshold
from gpupipe.preprocessing.steps.group_imputer import GroupImputer
from gpupipe.preprocessing.steps.group_stats import GroupStats
from gpupipe.preprocessing.steps.hashing import HashBucket, HashedCross
from gpupipe.preprocessing.steps.imputer import SimpleImputer
from gpupipe.preprocessing.steps.kmeans import KMeans
from gpupipe.preprocessing.steps.list_slice import ListSlice
from gpupipe.preprocessing.steps.log1p import Log1p
from gpupipe.preprocessing.steps.ngrams import HashedNgrams
from gpupipe.preprocessing.steps.normalizer import Normalizer
from gpupipe.preprocessing.steps.one_hot import OneHotEncoder
from gpupipe.preprocessing.steps.ordinal import OrdinalEncoder
from gpupipe.preprocessing.steps.pca import PCA, IncrementalPCA
from gpupipe.preprocessing.steps.power_transformer import PowerTransformer
from gpupipe.preprocessing.steps.quantile_transformer import QuantileTransformer
from gpupipe.preprocessing.steps.scalers import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler
from gpupipe.preprocessing.steps.svd import TruncatedSVD
from gpupipe.preprocessing.steps.target_encoder import TargetEncoder

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
    "EstimatorStep",
    "GatheredStep",
    "GroupImputer",
    "GroupStats",
    "HashBucket",
    "HashedCross",
    "HashedNgrams",
    "IncrementalPCA",
    "Invertible",
    "KBinsDiscretizer",
    "KMeans",
    "LearnedStep",
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
]
