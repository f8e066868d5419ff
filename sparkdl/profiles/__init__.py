"""The profile of a DataFrame: what its features looked like when a model was trained (driver)."""

from sparkdl.profiles.counting import BinCounter, FeatureBins
from sparkdl.profiles.elements import column_of, is_chosen, remarks
from sparkdl.profiles.profile import as_arrow, check, kind_of, known_columns, profile

__all__ = [
    "BinCounter",
    "FeatureBins",
    "as_arrow",
    "check",
    "column_of",
    "is_chosen",
    "kind_of",
    "known_columns",
    "profile",
    "remarks",
]
