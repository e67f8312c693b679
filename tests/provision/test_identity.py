"""`flhe keygen --home`: an identity, and its public key in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from flhe.keys.identity import Identity
from flhe.keys.roster import fingerprint
from flhe.keys.roster.enrolment import Enrolment
from tests.provision.site import bad, good


def test_an_identity_is_made_once(tmp_path: Path) -> None:
    home, out = tmp_path / "new" / "home", tmp_path / "a.site"
    said = good("keygen", "--home", home, "--name", "site-a", "--out", out)
    seed = (home / "identity.key").read_bytes()
    assert home.stat().st_mode & 0o777 == 0o700
    assert (home / "identity.key").stat().st_mode & 0o777 == 0o600
    key = Identity(seed).public
    assert key.hex() in said
    assert all(line in said for line in fingerprint.lines(key))
    assert seed.hex() not in said
    assert Enrolment.from_bytes(out.read_bytes()).member.public == key
    assert "has an identity already" in good(
        "keygen", "--home", home, "--name", "site-a", "--out", out
    )
    again = ("keygen", "--home", tmp_path / "other", "--name", "site-a", "--out", out)
    assert "not overwritten" in bad(*again)  # a request goes where nothing is
    assert (home / "identity.key").read_bytes() == seed
    assert Enrolment.from_bytes(out.read_bytes()).member.public == key


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--name", "site-a"], "takes --home DIR and --name NAME"),
        (["--home", "h", "--name", "a", "--scheme", "esafl"], "dealt keys take neither"),
        (["--home", "h", "--name", "../a"], "name must be"),
    ],
)
def test_an_identity_that_is_not_made(
    options: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in bad("keygen", *options)
    assert not list(tmp_path.iterdir())
