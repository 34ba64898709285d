"""Data sets, the user's own files, open splits and partitions."""

from fedwild.data.classes import ClassRoles, choose_classes
from fedwild.data.dataset import Dataset
from fedwild.data.partition import PARTITIONS, PartitionEntry, default_partition, parse_partition
from fedwild.data.samples import NO_CLASS, Samples, samples_of
from fedwild.data.settings import SITES, DataSettings, NewcomerSettings, PartitionSettings
from fedwild.data.sources import DATASETS, DataEntry, check_names, data_names, load, prepare, with_newcomers
from fedwild.data.split import ClientSplit, Split, admitted, make_split, site_split

__all__ = [
    "DATASETS",
    "NO_CLASS",
    "PARTITIONS",
    "SITES",
    "ClassRoles",
    "ClientSplit",
    "DataEntry",
    "DataSettings",
    "Dataset",
    "NewcomerSettings",
    "PartitionEntry",
    "PartitionSettings",
    "Samples",
    "Split",
    "admitted",
    "check_names",
    "choose_classes",
    "data_names",
    "default_partition",
    "load",
    "make_split",
    "parse_partition",
    "prepare",
    "samples_of",
    "site_split",
    "with_newcomers",
]
