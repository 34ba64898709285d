"""Data sets, the user's own files, open splits and partitions."""

from fedwild.data.classes import ClassRoles, choose_classes
from fedwild.data.dataset import Dataset
from fedwild.data.partitions import PARTITIONS, Partition, PartitionSettings, choose_partition, partition_settings
from fedwild.data.samples import NO_CLASS, Samples, samples_of
from fedwild.data.settings import SITES, DataSettings, NewcomerSettings
from fedwild.data.sources import DATASETS, DataEntry, check_names, load, prepare, with_newcomers
from fedwild.data.split import ClientSplit, Split, add_newcomers, make_split, site_split

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
    "Partition",
    "PartitionSettings",
    "Samples",
    "Split",
    "add_newcomers",
    "check_names",
    "choose_classes",
    "choose_partition",
    "load",
    "make_split",
    "partition_settings",
    "prepare",
    "samples_of",
    "site_split",
    "with_newcomers",
]
