"""Measuring: every workload against what a user would run instead, in one run, checked against float64.

``build`` compiles artifacts on any machine; ``runner`` measures them, with their baselines, on the machine that has the GPU
and needs neither TVM nor TileLang. Rows are JSON lines; ``rows`` reads, compares and prints them.
"""

from redfuser.bench.found import install

install()
