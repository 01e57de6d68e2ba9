#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that no class does, or keeps, more than one noun can: METHODS_MAX methods and FIELDS_MAX fields at most. Prints each
class that has more, and exits with 1.

A method is a member function that the class declares, static or not, whoever may call it: overloads, constructors, destructors
and operators each count, what is deleted does not. A field is a member of each object, so not a static one. A class inside of
another counts on its own. Data without a method (a message, options, a row) may have any number of fields.

usage: classes.py ROOT [--rooms ROOM...] [--methods N] [--fields N] [--largest N]
--largest: also prints that many of the largest classes of these rooms.
"""
import argparse
import bisect
import dataclasses
import re
import sys

import tree

ROOMS = ["core", "transport", "repo", "predictor", "scheduler", "bindings"]
METHODS_MAX = 40
FIELDS_MAX = 30
# (methods, fields) of the classes that are larger and stay so, by file and name. They must not grow.
LARGER = {
    # An interface of many questions, and the two that answer all of them.
    ("repo/local/local_repository.h", "LocalRepository"): (51, FIELDS_MAX),
    ("repo/serve/client/remote.h", "RemoteRepository"): (69, FIELDS_MAX),
    # Machines whose state is one: their simulations drive them as they are.
    ("repo/serve/server/server_machine.h", "ServerMachine"): (49, FIELDS_MAX),
    # The shell that puts a server's parts together.
    ("repo/serve/server.cc", "Server"): (METHODS_MAX, 33),
}

# What is no part of a declaration, and what may stand beside one.
NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'',
                     re.DOTALL | re.MULTILINE)
NESTED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
BESIDE = re.compile(rf"\bFRESHET_[A-Z_]+\b(?:\s*{NESTED})?|\b(?:alignas|explicit|decltype|noexcept)\s*{NESTED}|\[\[[^\]]*\]\]"
                    r"|\b(?:public|protected|private)\s*:(?!:)")
CLASS = re.compile(r"(?:^|[\s;>])(?<!enum\s)(?:class|struct|union)\s+((?:\w+::)*\w*)(?:<.*>)?\s*(?:final\s*)?(?::(?!:).*)?$", re.DOTALL)
NO_MEMBER = re.compile(r"(?:using|typedef|friend|static_assert|enum|class|struct|union|concept)\b")


@dataclasses.dataclass
class Class:
    name: str
    line: int
    methods: int = 0
    fields: int = 0
    path: str = ""


def count(declaration, into):
    """Counts one declaration inside of a class; `{}` stands in it for each block that it had."""
    text = BESIDE.sub(" ", declaration).strip()
    text = re.sub(r"\boperator\s*(?:\(\)|[^\w\s(]+)", "operator", text)
    before = None
    while before != text:  # A type's arguments may look like a function's.
        before, text = text, re.sub(r"<[^<>;]*>", "", text.replace("->", ""))
    text = re.sub(r"^template\s*(?:requires.*?\)\s)?", "", text)
    if not text or NO_MEMBER.match(text):
        return
    head, _, value = text.partition("=")
    if "(" in head:
        into.methods += value.strip() != "delete"
    elif not re.match(r"(?:inline\s+)?(?:static|constexpr)\b", text):
        into.fields += 1 + re.sub(NESTED, "", text).count(",")


class Reader:
    def __init__(self, text):
        self.text = NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group(0)), text)
        self.lines = [match.start() for match in re.finditer("\n", self.text)]
        self.end_of, opened = {}, []
        for match in re.finditer("[{}]", self.text):
            if match.group(0) == "{":
                opened.append(match.start())
            elif opened:
                self.end_of[opened.pop()] = match.start()
        self.found = []

    def read(self, begin, end, owner=None):
        """What stands between two places, directly inside of `owner`; None: inside of no class."""
        declaration, depth, at = "", 0, begin
        while at < end:
            mark = re.compile("[{};()]").search(self.text, at, end)
            stop = mark.start() if mark else end
            declaration += self.text[at:stop]
            at = stop + 1
            if not mark:
                break
            mark = mark.group(0)
            if mark in "()":
                depth += 1 if mark == "(" else -1
                declaration += mark
            elif mark == ";":
                if owner and depth == 0:
                    count(declaration, owner)
                declaration = declaration + mark if depth > 0 else ""
            elif mark == "{":
                block_end = self.end_of.get(stop, end)
                head = CLASS.search(BESIDE.sub(" ", declaration)) if depth == 0 else None
                inner = None
                if head:
                    name = head.group(1) or "(unnamed)"
                    inner = Class(f"{owner.name}::{name}" if owner else name, bisect.bisect(self.lines, stop) + 1)
                    self.found.append(inner)
                self.read(stop + 1, block_end, inner)
                at = block_end + 1
                following = re.compile(r"\s*(.?)", re.DOTALL).match(self.text, at, end).group(1)
                if head:
                    declaration = "" if following == ";" else "Inner "  # `struct { … } name;` is a field.
                    at += following == ";" and self.text.index(";", at) - at + 1
                elif depth > 0 or following in (";", ",", "{") and owner:
                    declaration += "{}"
                else:
                    if owner:
                        count(declaration, owner)
                    declaration = ""


def classes_of(path, text):
    reader = Reader(text)
    reader.read(0, len(reader.text))
    return [dataclasses.replace(found, path=path) for found in reader.found]


def classes_in(root, rooms):
    for path in tree.files(root):
        if path.split("/")[0] in rooms and path.endswith(tree.CODE) and not tree.is_of_tests(path):
            yield from classes_of(path, tree.text(root, path) or "")


def violations(found, methods_max=METHODS_MAX, fields_max=FIELDS_MAX):
    lines = []
    for each in found:
        methods_known, fields_known = LARGER.get((each.path, each.name), (0, 0))
        where = f"{each.path}:{each.line}: {each.name} has"
        if each.methods > max(methods_max, methods_known):
            lines.append(f"{where} {each.methods} methods, more than {methods_max}: is there a second noun in it?")
        if each.fields > max(fields_max, fields_known) and each.methods > 0:
            lines.append(f"{where} {each.fields} fields, more than {fields_max}: which of them are a noun of their own?")
    return lines


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--rooms", nargs="+", default=ROOMS)
    parser.add_argument("--methods", type=int, default=METHODS_MAX)
    parser.add_argument("--fields", type=int, default=FIELDS_MAX)
    parser.add_argument("--largest", type=int, default=0)
    options = parser.parse_args(arguments)
    found = list(classes_in(options.root, options.rooms))
    by_size = sorted(found, key=lambda each: (-each.methods - each.fields, each.path, each.line))
    for each in by_size[:options.largest]:
        print(f"{each.path}:{each.line}: {each.name}: {each.methods} methods, {each.fields} fields")
    lines = violations(found, options.methods, options.fields)
    print("\n".join(lines) or "no class is too large")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
