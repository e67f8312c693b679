"""`flhe keygen`: dealt keys, one private file a site, and nothing half done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe.errors import StoreError
from flhe.keys.agreement.dealt import Dealt
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Member, Roster
from flhe.provision import keygen
from flhe.schemes.esafl.scheme import Esafl
from flhe.wire import files
from tests.provision.site import bad, good
from tests.rosters import write_pinned

NAMES = ("hospital-a", "Hospital.B", "clinic_c", "lab-9")


def roster(*schemes: str) -> Roster:
    """A roster of those sites, for some schemes or all."""
    keys = [Identity(bytes([i]) * 32).public for i in range(1, len(NAMES) + 1)]
    return Roster(tuple(map(Member, NAMES, keys)), 0, 2, schemes or ("*",))


def deal(
    tmp: Path, *more: str, sites: Roster | None = None, out: str = "keys", do: Any = good
) -> str:
    """`flhe keygen --scheme esafl ...`; its files go to tmp / out."""
    sites = sites or roster()
    path = tmp / "roster"
    write_pinned(path, sites)
    options = ["--scheme", "esafl", "--roster", str(path), "--roster-hash", sites.hash.hex()]
    return str(do("keygen", *options, "--out", tmp / out, *more))


def read(folder: Path) -> dict[str, Dealt]:
    found = {path.name: Dealt.from_bytes(files.read(path)) for path in folder.iterdir()}
    return {name.removesuffix(keygen.SUFFIX): dealt for name, dealt in found.items()}


@pytest.mark.parametrize(
    ("ring", "dimension", "count"), [("goldilocks-4096", 4096, 4), ("rns-8192", 8192, 3)]
)
def test_each_site_gets_its_file(ring: str, dimension: int, count: int, tmp_path: Path) -> None:
    names = NAMES[:count]
    without = [word for name in NAMES if name not in names for word in ("--without", name)]
    output = deal(tmp_path, "--ring", ring, *without)
    assert ("lab-9" in output) == (not without)
    folder, sites = tmp_path / "keys", roster()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())
    dealt = read(folder)
    assert set(dealt) == set(names)
    total = np.sum([one.key.own for one in dealt.values()], axis=0, dtype=np.int32)
    for name, one in dealt.items():
        assert sites.name(one.member) == name
        assert (one.scheme, one.roster_hash) == (Esafl(ring, "dealt"), sites.hash)
        assert {sites.name(member) for member in one.members} == set(names)
        assert one.key.own.shape == (dimension,)
        assert np.array_equal(one.key.total, total)
    (serial,) = {one.serial for one in dealt.values()}
    for said in (serial.hex(), sites.hash.hex(), "flhe-dealt-key", *names):
        assert said in output
    deal(tmp_path, out="again")
    for name, one in read(tmp_path / "again").items():  # two dealings share nothing
        assert one.serial != serial
        assert name not in dealt or not np.array_equal(one.key.own, dealt[name].key.own)


def test_a_site_shows_what_it_may(tmp_path: Path) -> None:
    deal(tmp_path)
    path = tmp_path / "keys" / f"lab-9{keygen.SUFFIX}"
    dealt = Dealt.from_bytes(files.read(path))
    output = good("keygen", "--show", path)
    for said in (dealt.serial.hex(), f"esafl; {dealt.scheme.summary()}", dealt.member.hex()):
        assert said in output
    shown = set("".join(output.replace(dealt.scheme.summary(), "").split()))
    assert len(output) < 600  # a key has thousands of digits
    assert shown <= set("0123456789abcdefghijklmnopqrstuvwxyz;")
    path.chmod(0o640)
    assert "chmod 600" in bad("keygen", "--show", path)
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1])
    assert "damaged" in bad("keygen", "--show", path)


def test_no_key_is_overwritten(tmp_path: Path) -> None:
    deal(tmp_path)
    folder = tmp_path / "keys"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert "exists already" in deal(tmp_path, do=bad)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    left = folder / f"clinic_c{keygen.SUFFIX}"
    left.rename(folder / "elsewhere")
    assert "exists already" in deal(tmp_path, do=bad)
    assert not left.exists()
    for path in folder.iterdir():
        path.unlink()
    left.symlink_to(tmp_path / "roster")
    assert "exists already" in deal(tmp_path, do=bad)


def test_half_a_dealing_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create, made = files.create, []

    def full(path: Path, data: bytes, where: str) -> bool:
        if len(made) == 2:
            raise StoreError(f"cannot write in {where}: No space left on device")
        made.append(path)
        return create(path, data, where)

    monkeypatch.setattr(files, "create", full)
    assert "in the directory of --out: No space left" in deal(tmp_path, do=bad)
    assert len(made) == 2
    assert not list((tmp_path / "keys").iterdir())


@pytest.mark.parametrize(
    ("options", "how", "message"),
    [
        (["--ring", "rns-2048"], {}, "ring 'rns-2048': ESHE has goldilocks"),
        (["--without", "nobody"], {}, "--without nobody: no site of the roster; there are Hosp"),
        (["--without", "lab-9", "--without", "clinic_c"], {}, "keys for 2 members"),
        (["--roster-hash", "00" * 32], {}, "the roster file has hash"),
        ([], {"sites": roster("flashe", "sash")}, "it allows flashe, sash and not esafl"),
        ([], {"out": "."}, "name a directory of yours that no other user may access"),
    ],
    ids=str,
)
def test_refuses(options: list[str], how: dict[str, Any], message: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert message in deal(tmp_path, *options, **how, do=bad)
    assert [path.name for path in tmp_path.iterdir()] == ["roster"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "keys are dealt for esafl only: say --scheme esafl. `flhe site init` makes"),
        ("--scheme flashe", "--scheme flashe: keys can be dealt for esafl only"),
        ("--scheme esafl --roster r --out o", "--roster-hash HEX is missing"),
        ("--show /no/such/file", "--show /no/such/file: the file is missing"),
    ],
    ids=str,
)
def test_refuses_what_is_incomplete(
    options: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in bad("keygen", *options.split())
    assert not list(tmp_path.iterdir())
