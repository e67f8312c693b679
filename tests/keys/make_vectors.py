"""A second implementation of boxes, envelopes and rosters, from the formulas alone: no flhe code.

Ed25519 and AES-GCM are PyCryptodome's. From the inputs of a good
case in tests/vectors it makes the outputs, and tests hold the file and the library to them. What must
fail is data. `python -m tests.keys.make_vectors` writes the outputs anew.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from typing import Any

from Crypto.Cipher import AES
from Crypto.PublicKey import ECC
from Crypto.Signature import eddsa

from tests.reference.wire import cbor, hkdf

SUITE = "x25519-ed25519-chacha20poly1305-sha256"
VECTORS = pathlib.Path(__file__).parents[1] / "vectors"

Case = dict[str, Any]


def cases(name: str) -> list[Case]:
    """What a file has."""
    found: list[Case] = json.loads((VECTORS / f"{name}.json").read_text())["cases"]
    return found


def unhex(value: Any) -> Any:
    """Bytes are {"hex": ...} in a file."""
    if not isinstance(value, dict):
        return value
    return bytes.fromhex(value["hex"]) if "hex" in value else {k: unhex(value[k]) for k in value}


def signed(secret: Any, header: dict[str, Any], payload_sha256: bytes) -> bytes:
    """A member's signature on a message."""
    digest = hashlib.sha512(cbor([header, payload_sha256])).digest()
    signature = eddsa.new(secret, "rfc8032").sign(cbor(["flhe/v1/" + header["stage"], digest]))
    assert isinstance(signature, bytes)
    return signature


def seal(case: Case) -> Case:
    h, size = unhex(case["head"]), case["chunk_bytes"]
    key, salt, plain = (bytes.fromhex(case[n]) for n in ("key", "salt", "plaintext"))
    info = [h["run_id"], h["roster_hash"], h["round"], h["rank"], salt]
    head = cbor({**h, "salt": salt, "chunk_bytes": size})
    aad = b"flhe-seal/3\n" + len(head).to_bytes(4, "big") + head
    box, chunks = aad, [plain[i : i + size] for i in range(0, len(plain), size)] or [b""]
    for i, chunk in enumerate(chunks):
        nonce = i.to_bytes(11, "big") + bytes([i == len(chunks) - 1])
        cipher = AES.new(hkdf(key, "seal", *info), AES.MODE_GCM, nonce=nonce)
        cipher.update(aad)
        box += b"".join(cipher.encrypt_and_digest(chunk))
    return {"box": box.hex()}


def envelope(case: Case) -> Case:
    header, payload = unhex(case["header"]), bytes.fromhex(case["payload"])
    sha = hashlib.sha256(payload).digest()
    secret = ECC.construct(curve="Ed25519", seed=bytes.fromhex(case["seed"]))
    body = {"header": header, "signature": signed(secret, header, sha), "payload": payload}
    return {"envelope": cbor(body).hex()}


def roster(case: Case) -> Case:
    texts = [[key, str(value).lower()] for key, value in sorted(case["limits"].items())]
    data = cbor(
        {
            "v": 4,
            "members": [[name, bytes.fromhex(key)] for name, key in case["members"]],
            "revoked": [bytes.fromhex(key) for key in case["revoked"]],
            "limits": [texts],
            **{name: case[name] for name in ("collusion", "min_survivors", "schemes")},
        }
    )
    return {"roster": data.hex(), "hash": hashlib.sha256(data).hexdigest()}


def main() -> None:
    for make in (seal, envelope, roster):
        path = VECTORS / f"{make.__name__}.json"
        contents = json.loads(path.read_text())
        for case in contents["cases"]:
            if "error" not in case:
                case.update(make(case))
        path.write_text(json.dumps(contents, indent=1) + "\n")


if __name__ == "__main__":
    main()
