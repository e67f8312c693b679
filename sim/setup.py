"""The packages of this distribution: this folder is flhe_lab."""

from setuptools import find_packages, setup

setup(
    script_name="setup.py", packages=["flhe_lab", *(f"flhe_lab.{name}" for name in find_packages())]
)
