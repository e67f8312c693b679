"""The packages of the library: those of flhe/, and those of strategies/, which are flhe.strategies."""

from setuptools import find_packages, setup

strategies = find_packages(include=["strategies", "strategies.*"])
setup(packages=find_packages(include=["flhe", "flhe.*"]) + [f"flhe.{name}" for name in strategies])
