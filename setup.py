"""The packages of a wheel; everything else is in pyproject.toml. The workloads of ``redfuser bench`` live in ``workloads/``
here and are installed as ``redfuser_workloads``: a wheel takes no top-level name that others may have."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["redfuser*"]),
              *(f"redfuser_{name}" for name in find_packages(include=["workloads", "workloads.*"]))],
    package_dir={"redfuser_workloads": "workloads"},
)
