"""The packages of this distribution: this folder is flhe_app."""

from setuptools import Distribution, find_packages, setup


class App(Distribution):
    """Flower's app format asks pyproject.toml for a license file; an index asks for an expression."""

    def parse_config_files(self, *args: object, **options: object) -> None:
        """Read pyproject.toml, and state the license as the other two distributions do."""
        super().parse_config_files(*args, **options)
        self.metadata.license, self.metadata.license_expression = None, "Apache-2.0"


setup(
    distclass=App,
    script_name="setup.py",
    packages=["flhe_app", *(f"flhe_app.{name}" for name in find_packages())],
)
