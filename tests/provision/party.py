"""A federation's sites and coordinator, each in a directory, and what its people type."""

from __future__ import annotations

from pathlib import Path

from flhe.provision.federation.published import Published
from flhe.provision.site.layout import Layout
from tests.deploy.test_shelf import key_files
from tests.provision.site import good

NAMES = ("site-a", "site-b", "site-c")
FILE = "cardio.flhe"


class Party:
    """All of a federation's directories below one, and what its people type."""

    def __init__(self, tmp: Path) -> None:
        self.tmp, self.desk = tmp, tmp / "desk"
        self.file = self.desk / FILE

    def layout(self, name: str) -> Layout:
        return Layout.of("cardio", self.tmp / name)

    def card(self, name: str) -> Path:
        return self.layout(name).card()[0]

    def init(self, *names: str) -> None:
        for name in names:
            good("site", "init", "cardio", "--name", name, "--dir", self.tmp / name, "--yes")

    def new(self, *more: object) -> str:
        reviewer = key_files(self.tmp, "reviewer").with_name("reviewer.pub")
        words = ("new", "cardio", "--address", "localhost:8000", "--reviewer", reviewer)
        more = ("--scheme", "flashe", *more)
        return good("federation", *words, "--dir", self.desk, *more)

    def add(self, *names: str) -> str:
        return good("federation", "add", self.desk, *map(self.card, names), "--yes")

    def publish(self) -> Published:
        good("federation", "publish", self.desk)
        return Published.read(self.file)

    def words(self, name: str, file: Path | None = None) -> tuple[object, ...]:
        file = file or self.file
        terms = Published.read(file).terms.hex()
        return ("site", "join", file, "--dir", self.tmp / name, "--terms", terms)

    def join(self, *names: str) -> None:
        for name in names:
            good(*self.words(name))
