"""Partitions: rules that divide training samples among clients."""

# ruff: noqa: F401
from fedwild.data.partitions.base import PARTITIONS, Partition, Rows
from fedwild.data.partitions.choice import (
    PartitionSettings,
    choose_partition,
    default_partition,
    parse_partition,
    partition_settings,
)
from fedwild.data.partitions.drawn import Classes, Dirichlet, Iid, Quantity, Shards
from fedwild.data.partitions.natural import Domain, Owner
