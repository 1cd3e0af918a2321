"""Find the cascades of a model: by dataflow and index expressions, never by op pattern, name or extent."""

from redfuser.partition.region import Partition, Region, partition

__all__ = ["Partition", "Region", "partition"]
