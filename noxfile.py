"""Every Flower and Python that flhe supports: `nox` has each train, and open what it trained.

uvx --with uv nox                      all of them, about ten minutes each
uvx --with uv nox -s "flower(flwr='1.38', python='3.11')"
"""

from __future__ import annotations

import nox

nox.options.default_venv_backend = "uv"

FLOWERS = ("1.38", "1.40", "1.41", "1.42")
PYTHONS = ("3.11", "3.12", "3.13")
LAWS = ("tests/test_laws.py", "tests/test_codec_laws.py")
"""What no Flower takes part in: once a Python."""
TESTS = (
    "tests/test_testing.py",
    "tests/strategies/test_every_scheme.py",
    "tests/strategies/test_flower_parts.py",
    "tests/strategies/test_secure_sum.py",
)


@nox.session
@nox.parametrize("python", PYTHONS)
@nox.parametrize("flwr", FLOWERS)
def flower(session: nox.Session, flwr: str) -> None:
    """Run the laws of federations; a simulation; a SuperLink with three SuperNodes, over TLS."""
    session.install("-e", ".[apps,ckks,paillier,dev]", "-e", "apps", "-e", "sim", f"flwr~={flwr}.0")
    tests = (*LAWS, *TESTS) if flwr == FLOWERS[0] else TESTS
    session.run("pytest", "-q", "-n", "2", *(session.posargs or tests))
    session.run("flhe", "run", "--scheme", "sash unmask=clients", "--rounds", "2", "--nodes", "4")
    if flwr != "1.38":  # its SuperNodes speak gRPC, by another port: docs/deploy.md begins at 1.40
        how = ("--no-kill", "--rounds", "2", "--patience", "9")
        session.run("flhe", "rehearse", "--scheme", "flashe", *how)


@nox.session(default=False, venv_backend="none")
def containers(session: nox.Session) -> None:
    """Build both images of the wheels in dist/, and run flhe and Flower in each; needs Docker."""
    for role in ("supernode", "superlink"):
        image = f"flhe-{role}"
        build = ("docker", "build", "-f", "deploy/Dockerfile", "-t", image, "--build-arg")
        session.run(*build, f"ROLE={role}", "dist", external=True)
        for program in ("flhe", f"flower-{role}"):
            run = ("docker", "run", "--rm", "--read-only", "--entrypoint", program, image)
            session.run(*run, "--version", external=True)
