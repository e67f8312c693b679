"""Records: frozen dataclasses that declare their one canonical encoding.

    @dataclass(frozen=True, slots=True)
    class ModelKey(Record):
        FORM = Form("model key", kind="flhe-model-key", version=1, most=512)
        epoch: Annotated[bytes, size(16)]
        run_id: U64
        key: Annotated[bytes, size(32), SECRET]

    a map   {"v": version, "kind": kind, name: value, ...}      where the form has version and kind
    a row   [version, kind, value, ...]

A nested record with a version of its own is stored as the bytes of its encoding, one without as a
map or row. Values are checked whenever a record is made: `_validate` adds checks across fields.
Decoding accepts only the output of encoding. Its errors name the wrong field, and repeat no byte of
the data.

`specs.py` lists the types of fields, and `fields.py` their bounds.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self, TypeVar
from typing import get_type_hints as hints_of

from flhe.errors import ConfigError, FlheError, ProtocolError
from flhe.wire.canonical import dumps, loads
from flhe.wire.specs import Spec, UnfitError, spec_of


@dataclass(frozen=True, slots=True)
class Form:
    """The encoding of a class of records, and its name in errors.

    `most` is the maximum length of an encoding, bytes. An encoding holds its `kind` and `version`;
    one within another record has neither. With `row` it has values alone, in order, without names.
    `error` is raised for a value out of bounds, also while decoding, and `damaged` replaces every
    error of decoding. `origin` describes the expected encoding, if the kind is another ("no file of
    `flhe keygen`"). `advice` is the remedy for another version, or for unknown fields.
    """

    what: str
    most: int = 1 << 20
    kind: str = ""
    version: int = 0
    row: bool = False
    error: type[FlheError] = ProtocolError
    origin: str = ""
    advice: str = ""
    damaged: FlheError | None = None
    head: dict[str, Any] = field(init=False, compare=False)
    """Fields before the record's own."""

    def fault(self, why: str) -> FlheError:
        """Return the error for an invalid encoding."""
        if self.damaged is None:
            return ProtocolError(f"{self.what}: {why}")
        return type(self.damaged)(*self.damaged.args)

    def __post_init__(self) -> None:
        said = {"v": self.version, "kind": self.kind}
        object.__setattr__(self, "head", {name: value for name, value in said.items() if value})


_SPECS: dict[type[Record], dict[str, Spec]] = {}


def _specs_of(cls: type[Record]) -> dict[str, Spec]:
    """Return the fields that the class declares; TypeError for a type without an encoding."""
    if cls not in _SPECS:
        hints = hints_of(cls, include_extras=True)
        own = fields(cls)  # type: ignore[arg-type]
        _SPECS[cls] = {f.name: spec_of(hints[f.name]) for f in own if f.init}
    return _SPECS[cls]


class Record:
    """A frozen dataclass with a FORM. Raises `FORM.error` for an invalid value of a field."""

    __slots__ = ()
    FORM: ClassVar[Form]

    def __post_init__(self) -> None:
        """Check and complete the declared fields, then run `_validate`."""
        for name, spec in _specs_of(type(self)).items():
            value = getattr(self, name)
            try:
                taken = spec.take(value)
            except UnfitError:
                raise _wrong(self.FORM, name, spec, self.FORM.error) from None
            if taken is not value:
                object.__setattr__(self, name, taken)
        self._validate()

    def _validate(self) -> None:
        """Check rules across fields; raise `FORM.error`."""

    def to_fields(self) -> dict[str, Any] | list[Any]:
        """Return the input of `to_bytes`' encoder."""
        specs, head = _specs_of(type(self)), self.FORM.head
        body = {name: spec.write(getattr(self, name)) for name, spec in specs.items()}
        return [*head.values(), *body.values()] if self.FORM.row else {**head, **body}

    def to_bytes(self) -> bytes:
        """Encode as canonical CBOR, the same bytes on every machine."""
        return dumps(self.to_fields())

    @classmethod
    def from_fields(cls, stored: object) -> Self:
        """Invert `to_fields`; raises as `from_bytes`."""
        form, specs = cls.FORM, _specs_of(cls)
        body = _by_name(form, specs, stored)
        values = {}
        for name, spec in specs.items():
            try:
                values[name] = spec.read(body[name])
            except UnfitError:
                raise _wrong(form, name, spec, ProtocolError) from None
        try:
            made = cls(**values)
        except ConfigError as error:
            if form.error is ConfigError:
                raise
            raise ProtocolError(f"{form.what}: {error}") from None
        changed = any(getattr(made, name) is not value for name, value in values.items())
        if changed and made.to_fields() != stored:  # values out of order are refused
            raise ProtocolError(f"{form.what}: not written as flhe writes it, or out of order")
        return made

    @classmethod
    def from_bytes(cls, data: bytes, most: int | None = None) -> Self:
        """Decode the output of `to_bytes`: up to `most` bytes, or `FORM.most`.

        Raises ProtocolError: anything else, or another version; FlheError: the errors that `FORM`
        sets for values out of bounds, or for every error.
        """
        form = cls.FORM
        try:
            return cls.from_fields(loads(data, most or form.most, form.what))
        except FlheError as error:
            if form.damaged is None:
                raise
            raise form.fault(str(error)) from None


class Kept(Record):
    """A record without secrets that is read many times: each content is decoded once a process."""

    @functools.cached_property
    def _encoded(self) -> bytes:
        return Record.to_bytes(self)

    def to_bytes(self) -> bytes:
        """Encode as canonical CBOR, the same bytes on every machine."""
        return self._encoded

    @classmethod
    def from_bytes(cls, data: bytes, most: int | None = None) -> Self:
        """Decode the output of `to_bytes`; raises as `Record.from_bytes`."""
        made: Self = _decoded(cls, bytes(data), most)  # type: ignore[arg-type]  # classes hash
        return made


@functools.lru_cache(maxsize=64)
def _decoded(cls: type[Kept], data: bytes, most: int | None) -> Any:
    return super(Kept, cls).from_bytes(data, most)


def _by_name(form: Form, specs: Iterable[str], stored: Any) -> dict[str, Any]:
    """Return the values in an encoding; ProtocolError unless it has exactly its fields."""
    names = (*form.head, *specs)
    needed, needs = (list, "a list") if form.row else (dict, "a map of named fields")
    if type(stored) is not needed:
        found = (
            f"this is {form.origin}"
            if form.origin
            else f"got {type(stored).__name__}, needs {needs}"
        )
        raise ProtocolError(f"{form.what}: {found}")
    unknown = len(stored) - len(names)
    if form.row:
        stored = dict(zip(names, stored, strict=False))
    if form.kind and stored.get("kind") != form.kind:
        raise ProtocolError(f"{form.what}: this is {form.origin or 'another kind of encoding'}")
    advice = form.advice and f": {form.advice}"
    if form.version and type(version := stored.get("v")) is int and version != form.version:
        raise ProtocolError(
            f"{form.what}: version {version}, this flhe reads {form.version}{advice}"
        )
    for name in names:
        if name not in stored:
            raise ProtocolError(f"{form.what}: field {name} is missing")
    if form.version and type(stored["v"]) is not int:
        raise ProtocolError(f"{form.what}: field v must be an integer")
    if unknown:
        raise ProtocolError(f"{form.what}: {unknown} unknown fields{advice}")
    return dict(stored)


def frame(head: Record, magic: bytes = b"") -> bytes:
    """Return the bytes before data too long for a record: magic | be32(length of head) | head."""
    encoded = head.to_bytes()
    return magic + len(encoded).to_bytes(4, "big") + encoded


R = TypeVar("R", bound=Record)


def unframe(
    kind: type[R], data: bytes | bytearray | memoryview, magic: bytes = b""
) -> tuple[R, int]:
    """Return the head, and the start of the data. Raises as `kind.from_bytes`, also if cut short."""
    start = len(magic) + 4
    if data[: len(magic)] != magic or len(data) < start:
        raise kind.FORM.fault("it does not start like one")
    end = start + int.from_bytes(data[start - 4 : start], "big")
    if end > len(data):
        raise kind.FORM.fault("cut short")
    return kind.from_bytes(bytes(data[start:end])), end


def _wrong(form: Form, name: str, spec: Spec, error: type[FlheError]) -> FlheError:
    return error(f"{form.what}: field {name} must be {spec.needs}")
