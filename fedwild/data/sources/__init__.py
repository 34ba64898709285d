"""Where data comes from: named sets, the user's own files, and made-up images."""

from fedwild.data.sources.catalogue import DATASETS, DataEntry, data_names
from fedwild.data.sources.load import load
from fedwild.data.sources.newcomer import check_names, with_newcomers
from fedwild.data.sources.prepare import find_prepared, prepare

__all__ = [
    "DATASETS",
    "DataEntry",
    "check_names",
    "data_names",
    "find_prepared",
    "load",
    "prepare",
    "with_newcomers",
]
