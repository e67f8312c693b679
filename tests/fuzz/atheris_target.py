"""Coverage-guided fuzzing of one decoder, for longer runs than tests are.

    pip install atheris
    python tests/fuzz/atheris_target.py --list
    python tests/fuzz/atheris_target.py "roster" -max_total_time=3600
    python tests/fuzz/atheris_target.py "terms" corpus/ -runs=1000000

What comes after the decoder's name goes to libFuzzer. It starts from the honest messages, mutates them
as the tests do (`tests/fuzz/mutations.py`), and stops at the first input that breaks a law; that input
is written to a file `crash-...`, and is tried again by giving the file in place of a corpus.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

try:
    import atheris
except ImportError:
    sys.exit(
        "atheris is not installed: pip install atheris (CPython on Linux or macOS). Without it, "
        "`pytest -m sweep tests/fuzz` tries 10,000 mutants of each message"
    )

# numba compiles these from their bytecode, which must be as it was written.
KERNELS = [f"flhe.math.{path.stem}" for path in (ROOT / "flhe/math").glob("*kernels.py")]

with atheris.instrument_imports(include=["flhe"], exclude=KERNELS):
    from tests.fuzz.declared import all_decoders
    from tests.fuzz.decoders import Decoder, take_honest, try_one
    from tests.fuzz.mutations import mutate


def fuzz(decoder: Decoder, options: list[str]) -> None:
    """Fuzz until libFuzzer is told to stop, or a law is broken; does not return."""
    take_honest(decoder)  # compiles and caches what is made once
    pool, honest = (*decoder.honest, *decoder.refused), frozenset(decoder.honest)

    def one_input(data: bytes) -> None:
        if data not in honest:
            try_one(decoder, data)

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        random = Random(seed)
        mine = atheris.Mutate(data, max_size) if random.random() < 0.5 else b""
        return (mine or mutate((data, *pool), random, decoder.head))[:max_size]

    with tempfile.TemporaryDirectory(prefix="fuzz-") as corpus:
        for number, data in enumerate(pool):
            (Path(corpus) / f"{number}").write_bytes(data)
        longest = 4 * max(map(len, pool)) + 4096
        arguments = [sys.argv[0], *options, corpus, f"-max_len={longest}"]
        atheris.Setup(arguments, one_input, custom_mutator=mutator)
        atheris.Fuzz()


def main() -> None:
    """Fuzz the decoder that is named first."""
    names = list(all_decoders())
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        sys.exit("\n".join(["name one of these, then libFuzzer's options:", *names]))
    fuzz(all_decoders()[sys.argv[1]], sys.argv[2:])


if __name__ == "__main__":
    main()
