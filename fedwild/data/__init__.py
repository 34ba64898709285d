"""Data sets, the user's own files, open splits and partitions."""

from fedwild.data.classes import ClassRoles, choose_classes
from fedwild.data.dataset import Dataset
from fedwild.data.partitions import PARTITIONS, Partition, PartitionSettings, choose_partition
from fedwild.data.samples import NO_CLASS, Samples, samples_of
from fedwild.data.settings import SITES, DataSettings, NewcomerSettings
from fedwild.data.sources import DATASETS, DataEntry, check_names, load, prepare, with_newcomers
from fedwild.data.split import ClientSplit, Split, add_newcomers, make_split, site_split
