"""A federation's sites and coordinator, each in a directory, and what its people type."""

from __future__ import annotations

import shutil
from pathlib import Path

from flhe.provision.federation.published import Published
from flhe.provision.site.layout import Layout
from tests.deploy.test_shelf import key_files
from tests.provision.site import good

NAMES = ("site-a", "site-b", "site-c")


class Party:
    """All of a federation's directories below one, and what its people type."""

    def __init__(self, tmp: Path) -> None:
        self.tmp, self.desk = tmp, tmp / "desk"
        self.file = self.desk / "cardio.flhe"

    def layout(self, name: str) -> Layout:
        return Layout.of("cardio", self.tmp / name)

    def card(self, name: str) -> Path:
        return self.layout(name).card()[0]

    def init(self, *names: str) -> None:
        for name in names:
            good("site", "init", "cardio", "--name", name, "--dir", self.tmp / name, "--yes")

    def reviewer(self, name: str = "reviewer") -> Path:
        """A reviewer's public key."""
        return key_files(self.tmp, name).with_name(f"{name}.pub")

    def founding(self, name: str = "cardio", address: str = "localhost:8000") -> tuple[object, ...]:
        """The command that founds a federation."""
        where = ("--reviewer", self.reviewer(), "--dir", self.desk)
        return ("federation", "new", name, "--address", address, "--scheme", "flashe", *where)

    def add(self, *names: str) -> str:
        return good("federation", "add", self.desk, *map(self.card, names), "--yes")

    def publish(self) -> Published:
        good("federation", "publish", self.desk)
        return Published.read(self.file)

    def review(self) -> None:
        """The coordinator takes another reviewer."""
        shutil.copy(self.reviewer("other"), self.desk / "reviewers")

    def rotate(self, name: str) -> Path:
        """The card of a site that changes its key."""
        good("site", "rotate", "cardio", "--dir", self.tmp / name, "--yes")
        return self.layout(name).rotated / f"{name}.card"

    def words(self, name: str, file: Path | None = None) -> tuple[object, ...]:
        file = file or self.file
        terms = Published.read(file).terms.hex()
        return ("site", "join", file, "--dir", self.tmp / name, "--terms", terms)

    def join(self, *names: str) -> None:
        for name in names:
            good(*self.words(name))
