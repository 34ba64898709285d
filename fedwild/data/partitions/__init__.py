"""Partitions: rules that divide training samples among clients."""

from fedwild.data.partitions.base import PARTITIONS, Partition, Rows
from fedwild.data.partitions.choice import (
    POOL,
    PartitionSettings,
    PoolPartitionSettings,
    choose_partition,
    default_partition,
    make_partition,
    parse_partition,
    partition_settings,
    pool_partition_settings,
)
from fedwild.data.partitions.drawn import Classes, Dirichlet, Iid, Quantity, Shards
from fedwild.data.partitions.mixes import ClassMix
from fedwild.data.partitions.natural import Domain, Owner
