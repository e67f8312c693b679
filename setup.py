"""The packages of the library, and its README for a package index.

The packages are those of flhe/, and those of strategies/, which are flhe.strategies. An index shows
the README without the files beside it. So its links lead to the address that pyproject.toml has as
`[project.urls] Source = "https://HOST/OWNER/flhe"`; without one they become plain text.
"""

import re
import tomllib
from pathlib import Path

from setuptools import find_packages, setup

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
source = project.get("urls", {}).get("Source", "")


def absolute(link: re.Match[str]) -> str:
    """Return a link or picture that an index can show."""
    mark, text, path = link.groups()
    place = f"{source}/{'raw' if mark else 'blob'}/v{project['version']}/{path}"
    return f"{mark}[{text}]({place})" if source else text


readme = Path("README.md").read_text(encoding="utf-8")
strategies = find_packages(include=["strategies", "strategies.*"])
setup(
    packages=find_packages(include=["flhe", "flhe.*"]) + [f"flhe.{name}" for name in strategies],
    long_description=re.sub(r"(!?)\[([^]]*)\]\((?!https?:|#)([^)]+)\)", absolute, readme),
    long_description_content_type="text/markdown",
)
