"""Make tests/vectors/seal.json, envelope.json and roster.json without flhe.

A second implementation, from the formulas alone: CBOR written by hand, Ed25519, HKDF and AES-GCM by
PyCryptodome. If flhe and this file ever disagree, one of them departed from the formulas.

    python tests/keys/make_vectors.py
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from typing import Any

import Crypto
from Crypto.Cipher import AES
from Crypto.Hash import SHA256
from Crypto.Protocol.KDF import HKDF
from Crypto.PublicKey import ECC
from Crypto.Signature import eddsa

SUITE = "x25519-ed25519-chacha20poly1305-sha256"
VECTORS = pathlib.Path(__file__).parents[1] / "vectors"
MADE_BY = (
    f"tests/keys/make_vectors.py: CBOR by hand, PyCryptodome {Crypto.__version__}; no flhe code"
)


def cbor(x: Any) -> bytes:
    def head(major: int, n: int) -> bytes:
        if n < 24:
            return bytes([major << 5 | n])
        width = next(w for w in (1, 2, 4, 8) if n < 1 << (8 * w))
        return bytes([major << 5 | 23 + width.bit_length()]) + n.to_bytes(width, "big")

    if isinstance(x, bytes):
        return head(2, len(x)) + x
    if isinstance(x, str):
        return head(3, len(x.encode())) + x.encode()
    if isinstance(x, bool):
        return bytes([0xF5 if x else 0xF4])
    if isinstance(x, int):
        return head(0, x)
    if isinstance(x, list):
        return head(4, len(x)) + b"".join(map(cbor, x))
    pairs = sorted((cbor(key), cbor(value)) for key, value in x.items())
    return head(5, len(x)) + b"".join(key + value for key, value in pairs)


def hkdf(secret: bytes, label: str, *context: Any) -> bytes:
    return HKDF(secret, 32, b"", SHA256, context=cbor(["flhe/v1/" + label, *context]))


def jsonable(x: Any) -> Any:
    if isinstance(x, dict):
        return {key: jsonable(value) for key, value in x.items()}
    return {"hex": x.hex()} if isinstance(x, bytes) else x


def seal(group_key: bytes, header: dict, plain: bytes, salt: bytes, size: int) -> bytes:
    h = header
    info = [h["stage"], h["round"], h["attempt"], h["rank"], salt, h["run_id"], h["roster_hash"]]
    key = hkdf(group_key, "seal", *info)
    head = cbor({"header": header, "salt": salt, "chunk_bytes": size})
    aad = b"flhe-seal/2\n" + len(head).to_bytes(4, "big") + head
    box = aad
    chunks = [plain[i : i + size] for i in range(0, len(plain), size)] or [b""]
    for i, chunk in enumerate(chunks):
        nonce = i.to_bytes(11, "big") + bytes([i == len(chunks) - 1])
        cipher = AES.new(key, AES.MODE_GCM, nonce=nonce)
        cipher.update(aad)
        box += b"".join(cipher.encrypt_and_digest(chunk))
    return box


def seal_vectors() -> dict:
    key, salt = bytes(range(32)), bytes(range(100, 132))
    header = {
        "run_id": 2**64 - 1,
        "roster_hash": b"\x11" * 32,
        "stage": "checkpoint",
        "round": 7,
        "attempt": 0,
        "rank": 2,
        "layout": b"\x22" * 32,
    }
    plain = b"the weights of a model, cut into chunks of 16 bytes"
    cases: list[dict] = []

    def good(name: str, text: bytes, size: int) -> bytes:
        box = seal(key, header, text, salt, size)
        cases.append(
            {
                "name": name,
                "group_key": key.hex(),
                "header": jsonable(header),
                "salt": salt.hex(),
                "chunk_bytes": size,
                "plaintext": text.hex(),
                "box": box.hex(),
            }
        )
        return box

    def bad(name: str, box: bytes, error: str, at: str, group_key: bytes = key) -> None:
        cases.append(
            {"name": name, "group_key": group_key.hex(), "box": box.hex(), "error": error, "at": at}
        )

    good("empty", b"", 16)
    good("one chunk", plain, 1 << 26)
    good("two full chunks", plain[:32], 16)
    box = good("four chunks, the last short", plain, 16)
    start = len(box) - len(plain) - 4 * 16
    chunk = [box[start + 32 * i : start + 32 * (i + 1)] for i in range(4)]
    edited = bytearray(box)
    edited[box.index(b"eround\x07") + 6] = 8
    flipped = bytearray(box)
    flipped[-1] ^= 1
    auth, bad_form = "AuthenticationError", "ProtocolError"
    bad("last chunk cut off", box[:start] + b"".join(chunk[:3]), auth, "open")
    bad("cut to the head", box[:start], auth, "open")
    swapped = [chunk[1], chunk[0], *chunk[2:]]
    bad("chunks swapped", box[:start] + b"".join(swapped), auth, "open")
    bad("a chunk added", box[:start] + b"".join(chunk[:3]) + chunk[0] + chunk[3], auth, "open")
    bad("bytes added", box + b"\0", auth, "open")
    bad("round in the header edited", bytes(edited), auth, "open")
    bad("one bit of the tag flipped", bytes(flipped), auth, "open")
    bad("another group key", box, auth, "open", b"\x01" * 32)
    bad("sealed by version 1", b"flhe-seal/1\n" + box[12:], bad_form, "parse")
    bad("head longer than the box", box[:12] + b"\xff\xff\xff\xff" + box[16:], bad_form, "parse")
    without = {name: value for name, value in header.items() if name != "rank"}
    head = cbor({"header": without, "salt": salt, "chunk_bytes": 16})
    bare = b"flhe-seal/2\n" + len(head).to_bytes(4, "big") + head + bytes(16)
    bad("no rank in the header", bare, bad_form, "parse")
    return {"version": 1, "made_by": MADE_BY, "cases": cases}


def envelope_vectors() -> dict:
    seed, payload = bytes(range(32)), b"a payload"
    secret = ECC.construct(curve="Ed25519", seed=seed)
    public = secret.public_key().export_key(format="raw")
    header = {
        "v": 1,
        "suite": SUITE,
        "roster_hash": b"\x11" * 32,
        "run_id": 2**63 + 5,
        "epoch": 3,
        "round": 2**32 - 1,
        "attempt": 1,
        "stage": "upload",
        "sender": public,
        "receiver": b"",
        "policy_hash": b"\x22" * 32,
        "layout_hash": b"",
    }

    def sign(header: dict, payload_sha256: bytes) -> bytes:
        digest = hashlib.sha512(cbor([header, payload_sha256])).digest()
        signed = cbor(["flhe/v1/" + header["stage"], digest])
        return eddsa.new(secret, "rfc8032").sign(signed)

    sha = hashlib.sha256(payload).digest()
    signature = sign(header, sha)
    body = {"header": header, "payload": payload, "signature": signature}
    data = cbor(body)
    detached = cbor({"header": header, "payload_sha256": sha, "signature": signature})
    positive = {
        "name": "broadcast of round 2**32 - 1",
        "seed": seed.hex(),
        "header": jsonable(header),
        "payload": payload.hex(),
        "envelope": data.hex(),
        "detached": detached.hex(),
    }
    cases: list[dict] = [positive]

    def bad(name: str, data: bytes, error: str, at: str, expect: dict | None = None) -> None:
        expect = jsonable(expect or {})
        cases.append(
            {"name": name, "envelope": data.hex(), "expect": expect, "error": error, "at": at}
        )

    def with_header(**changes: Any) -> bytes:
        return cbor({**body, "header": header | changes})

    auth, form = "AuthenticationError", "ProtocolError"
    bad("payload changed", cbor({**body, "payload": b"A payload"}), auth, "verify")
    bad("round changed", with_header(round=4), auth, "verify")
    bad("stage changed", with_header(stage="uploae"), auth, "verify")
    bad("signature changed", cbor({**body, "signature": bytes(64)}), auth, "verify")
    bad("of another run", data, form, "verify", {"run_id": 6})
    bad("for another receiver", data, form, "verify", {"receiver": b"\x33" * 32})
    bad("another suite, well signed", signed_suite(header, payload, sign), form, "verify")
    bad("field added to the header", with_header(more=1), form, "parse")
    bad("field added beside it", cbor({**body, "more": 1}), form, "parse")
    missing = {name: value for name, value in header.items() if name != "epoch"}
    bad("field left out", cbor({**body, "header": missing}), form, "parse")
    bad("version 2", with_header(v=2), form, "parse")
    bad("run_id of 65 bits", data.replace(b"frun_id\x1b", b"frun_id\xc2\x49\x01"), form, "parse")
    bad("round of 33 bits", with_header(round=2**32), form, "parse")
    bad("stage in capitals", with_header(stage="Upload"), form, "parse")
    bad("short sender", with_header(sender=public[:31]), form, "parse")
    bad("short signature", cbor({**body, "signature": signature[:63]}), form, "parse")
    bad("byte added", data + b"\0", form, "parse")
    bad("byte missing", data[:-1], form, "parse")
    bad("number in long form", data.replace(b"eepoch\x03", b"eepoch\x18\x03"), form, "parse")
    bad("key twice", data.replace(b"gattempt\x01", b"eepoch\x03"), form, "parse")
    return {"version": 1, "made_by": MADE_BY, "cases": cases}


def signed_suite(header: dict, payload: bytes, sign: Any) -> bytes:
    other = header | {"suite": "another-suite"}
    signature = sign(other, hashlib.sha256(payload).digest())
    return cbor({"header": other, "payload": payload, "signature": signature})


def roster_vectors() -> dict:
    secrets = [ECC.construct(curve="Ed25519", seed=bytes([i + 1]) * 32) for i in range(6)]
    keys = sorted(s.public_key().export_key(format="raw") for s in secrets)
    body = {
        "v": 4,
        "members": [[f"site-{i}", key] for i, key in enumerate(keys[:4])],
        "collusion": 1,
        "min_survivors": 3,
        "schemes": ["esafl", "flashe"],
        "revoked": [],
        "limits": [[]],
    }
    cases: list[dict] = []

    def good(name: str, limits: dict | None = None, **changes: Any) -> None:
        said = sorted((limits or {}).items())
        texts = [[key, str(value).lower()] for key, value in said]
        roster = body | changes | {"limits": [texts]}
        data = cbor(roster)
        cases.append(
            {
                "name": name,
                "members": [[member, key.hex()] for member, key in roster["members"]],
                "collusion": roster["collusion"],
                "min_survivors": roster["min_survivors"],
                "schemes": roster["schemes"],
                "revoked": [key.hex() for key in roster["revoked"]],
                "limits": dict(said),
                "roster": data.hex(),
                "hash": hashlib.sha256(data).hexdigest(),
            }
        )

    def bad(name: str, error: str, **changes: Any) -> None:
        cases.append({"name": name, "roster": cbor(body | changes).hex(), "error": error})

    good("nobody was removed")
    good("two were removed", revoked=keys[4:])
    limits = {"counts": False, "key-bits": 3072, "min-members": 4, "min-select": 0.25}
    good("limits on parameters", limits=limits | {"server-reads": True})

    def limited(name: str, error: str, *said: Any) -> None:
        bad(name, error, limits=[list(said)])

    limited("a limit that nobody knows", "ProtocolError", ["no-such-limit", "1"])
    limited("a limit that is too many members", "ConfigError", ["min-members", "5"])
    limited("a share that is a number", "ProtocolError", ["min-select", 1])
    limited("a share in another form", "ProtocolError", ["min-select", "0.250"])
    limited("a share beyond all", "ProtocolError", ["min-select", "1.5"])
    limited("noise without end", "ProtocolError", ["min-noise", "inf"])
    limited("a permission that is a number", "ProtocolError", ["server-reads", "1"])
    limited("limits out of order", "ProtocolError", ["min-select", "0.5"], ["counts", "true"])
    limited("a limit twice", "ProtocolError", ["counts", "true"], ["counts", "true"])
    bad("limits as a map", "ProtocolError", limits={})
    bad("members out of order", "ProtocolError", members=body["members"][::-1])
    bad("revoked keys out of order", "ProtocolError", revoked=keys[:3:-1])
    bad("a revoked key twice", "ConfigError", revoked=[keys[4], keys[4]])
    bad("a revoked member", "ConfigError", revoked=[keys[0]])
    bad("a short revoked key", "ConfigError", revoked=[keys[4][:31]])
    bad("too few members", "ConfigError", members=body["members"][:3])
    bad("version 2", "ProtocolError", v=2)
    bad("version 5", "ProtocolError", v=5)
    bad("a field more", "ProtocolError", more=1)
    without = {name: value for name, value in body.items() if name != "revoked"}
    cases.append(
        {"name": "no revoked keys field", "roster": cbor(without).hex(), "error": "ProtocolError"}
    )
    return {"version": 1, "made_by": MADE_BY, "cases": cases}


if __name__ == "__main__":
    made = {"seal": seal_vectors(), "envelope": envelope_vectors(), "roster": roster_vectors()}
    for name, vectors in made.items():
        (VECTORS / f"{name}.json").write_text(json.dumps(vectors, indent=1) + "\n")
