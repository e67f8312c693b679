"""The packages of this distribution: this folder is flhe_app."""

from setuptools import find_packages, setup

setup(
    script_name="setup.py", packages=["flhe_app", *(f"flhe_app.{name}" for name in find_packages())]
)
