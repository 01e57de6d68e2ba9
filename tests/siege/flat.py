# SPDX-License-Identifier: Apache-2.0
"""FlatBuffers, as far as hostile peers need them: tables are written from field numbers, and single fields read back. Nothing
here knows a schema, so what it writes can be as wrong as one likes.

A value is ("u8" … "i64", number), a str, bytes (a vector of bytes), ("words", [u64 …]), ("offsets", [values …]), ("struct",
bytes) or a table: a dict of field number to value.
"""
import struct

SCALARS = {"u8": "<B", "bool": "<B", "u16": "<H", "i32": "<i", "u32": "<I", "i64": "<q", "u64": "<Q", "f64": "<d"}


def pad(out, remainder, modulus):
    while len(out) % modulus != remainder:
        out.append(0)


def size_of(value):
    if isinstance(value, tuple) and value[0] in SCALARS:
        return struct.calcsize(SCALARS[value[0]])
    if isinstance(value, tuple) and value[0] == "struct":
        return len(value[1])
    return 4


def write_table(out, fields):
    """Appends the vtable, the table and what it points to; returns where the table begins."""
    slots = max(fields, default=-1) + 1
    vtable_bytes = 4 + 2 * slots
    while (len(out) + vtable_bytes) % 8 != 4:  # Then the fields, after four bytes, begin at a multiple of eight.
        out.append(0)
    vtable, table = len(out), len(out) + vtable_bytes
    places, at = {}, 4
    for slot in sorted(fields, key=lambda slot: -size_of(fields[slot])):
        places[slot] = at
        at += size_of(fields[slot])
    out += struct.pack("<HH", vtable_bytes, at)
    out += b"".join(struct.pack("<H", places.get(slot, 0)) for slot in range(slots))
    out += struct.pack("<i", table - vtable) + bytes(at - 4)
    for slot, value in fields.items():
        place = table + places[slot]
        if isinstance(value, tuple) and value[0] in SCALARS:
            struct.pack_into(SCALARS[value[0]], out, place, value[1])
        elif isinstance(value, tuple) and value[0] == "struct":
            out[place:place + len(value[1])] = value[1]
        else:
            point_to(out, place, value)
    return table


def point_to(out, place, value):
    struct.pack_into("<I", out, place, write_value(out, value) - place)


def write_value(out, value):
    if isinstance(value, dict):
        return write_table(out, value)
    if isinstance(value, str):
        value = value.encode() + b"\0"
        pad(out, 0, 4)
        begin = len(out)
        out += struct.pack("<I", len(value) - 1) + value
        return begin
    if isinstance(value, bytes):
        pad(out, 0, 4)
        begin = len(out)
        out += struct.pack("<I", len(value)) + value
        return begin
    kind, elements = value[0], value[1]
    pad(out, 4, 8)
    begin = len(out)
    out += struct.pack("<I", len(elements))
    if kind == "words":
        out += struct.pack(f"<{len(elements)}Q", *elements)
    elif kind == "structs":
        out += b"".join(elements)
    else:
        first = len(out)
        out += bytes(4 * len(elements))
        for index, element in enumerate(elements):
            point_to(out, first + 4 * index, element)
    return begin


def encode(root, identifier=b""):
    out = bytearray(4) + identifier
    struct.pack_into("<I", out, 0, write_table(out, root))
    pad(out, 0, 8)
    return bytes(out)


def encode_union(kind, body, identifier=b"", before=None):
    """A root whose union stands after the fields of `before`."""
    root = dict(before or {})
    slot = len(root)
    root[slot], root[slot + 1] = ("u8", kind), body
    return encode(root, identifier)


class Table:
    """A table of a received buffer. Fields that are absent read as None; a buffer that lies raises struct.error."""

    def __init__(self, buffer, place):
        self.buffer, self.place = buffer, place

    @staticmethod
    def root(buffer):
        return Table(buffer, struct.unpack_from("<I", buffer, 0)[0])

    def at(self, slot):
        vtable = self.place - struct.unpack_from("<i", self.buffer, self.place)[0]
        if 4 + 2 * slot >= struct.unpack_from("<H", self.buffer, vtable)[0]:
            return None
        offset = struct.unpack_from("<H", self.buffer, vtable + 4 + 2 * slot)[0]
        return self.place + offset if offset else None

    def scalar(self, slot, kind, default=0):
        place = self.at(slot)
        return default if place is None else struct.unpack_from(SCALARS[kind], self.buffer, place)[0]

    def target(self, place):
        return place + struct.unpack_from("<I", self.buffer, place)[0]

    def table(self, slot):
        place = self.at(slot)
        return None if place is None else Table(self.buffer, self.target(place))

    def text(self, slot):
        place = self.at(slot)
        if place is None:
            return ""
        begin = self.target(place)
        length = struct.unpack_from("<I", self.buffer, begin)[0]
        return self.buffer[begin + 4:begin + 4 + length].decode(errors="replace")

    def words(self, slot):
        place = self.at(slot)
        if place is None:
            return []
        begin = self.target(place)
        count = struct.unpack_from("<I", self.buffer, begin)[0]
        return list(struct.unpack_from(f"<{count}Q", self.buffer, begin + 4))

    def tables(self, slot):
        place = self.at(slot)
        if place is None:
            return []
        begin = self.target(place)
        count = struct.unpack_from("<I", self.buffer, begin)[0]
        return [Table(self.buffer, self.target(begin + 4 + 4 * index)) for index in range(count)]
