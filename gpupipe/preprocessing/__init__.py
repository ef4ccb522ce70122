"""Preprocessing: steps from a frame to feature columns, whose state is learned by merging summaries of partitions."""

from typing import TYPE_CHECKING

from gpupipe.preprocessing.learned_step import Columns, Invertible, LearnedStep, StatelessStep, Summary
from gpupipe.preprocessing.steps.bins import Bucketize, KBinsDiscretizer
from gpupipe.preprocessing.steps.distributions import PowerTransformer, QuantileTransformer
from gpupipe.preprocessing.steps.encoders import (
    Categorify,
    CountEncoder,
    DatetimeEncoder,
    HashBucket,
    HashedCross,
    HashedNgrams,
    OneHotEncoder,
    OrdinalEncoder,
)
from gpupipe.preprocessing.steps.gathered import EstimatorStep, GatheredStep, KMeans
from gpupipe.preprocessing.steps.groups import GroupImputer, GroupStats
from gpupipe.preprocessing.steps.imputer import SimpleImputer
from gpupipe.preprocessing.steps.list_slice import ListSlice
from gpupipe.preprocessing.steps.reduction import (
    PCA,
    CorrelationThreshold,
    IncrementalPCA,
    TruncatedSVD,
    VarianceThreshold,
)
from gpupipe.preprocessing.steps.scalers import (
    Downcast,
    Log1p,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    RobustScaler,
    StandardScaler,
)
from gpupipe.preprocessing.steps.target_encoder import CrossFittedStep, TargetEncoder
from gpupipe.support.attributes import answer_names

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

if not TYPE_CHECKING:  # for which any name would be one
    __getattr__ = answer_names(__name__, __all__)
