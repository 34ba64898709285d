"""Sources of data: named data sets, the user's own files, and synthetic images."""

from fedwild.data.sources.catalogue import DATASETS, DataEntry
from fedwild.data.sources.load import load
from fedwild.data.sources.newcomer import check_names, with_newcomers
from fedwild.data.sources.prepare import difference_from_catalogue, find_prepared, prepare, why_missing
