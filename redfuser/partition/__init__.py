"""Find the cascades of a model: by dataflow and index expressions, never by op pattern, name or extent."""

from redfuser.partition.cost import scaling_pays
from redfuser.partition.region import Partition, Region
from redfuser.partition.search import Partitioner, partition

__all__ = ["Partition", "Partitioner", "Region", "partition", "scaling_pays"]
