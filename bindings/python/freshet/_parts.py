# SPDX-License-Identifier: Apache-2.0
"""Models that lie in several files: what an index names, and which file is a part and no model. Safetensors files and their
indexes are C++'s (core/safetensors/model_file.h); here are the other kinds."""
from __future__ import annotations

import json
import os
import re
from typing import Dict, List, Optional, Set

from ._errors import Corrupt, InvalidArgument, NotFound

_INDEX = re.compile(r"(\.[a-z0-9]+)\.index(\.[^./]+)?\.json$")
_KERAS_INDEX = ".weights.json"
_NUMBERED = re.compile(r"-\d+-of-0*([1-9]\d*)\.[a-z0-9]+$")
_INDEX_BYTES_MAX = 64 << 20


def kind_of_index(path: str) -> Optional[str]:
    """".bin" of pytorch_model.bin.index.json; None for what is no index."""
    found = _INDEX.search(os.path.basename(path))
    return found.group(1) if found else None


def files_of_index(path: str) -> Dict[str, Set[str]]:
    """The tensors that each file has, by the file's path. Corrupt, with the index's name."""
    try:
        if os.path.getsize(path) > _INDEX_BYTES_MAX:
            raise Corrupt(f"{path}: over the limit of {_INDEX_BYTES_MAX} bytes for an index")
        with open(path, encoding="utf-8") as file:
            told = json.load(file)["weight_map"]
        pairs = [(str(tensor), name) for tensor, names in told.items() for name in ([names] if isinstance(names, str) else names)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(f"{path}: not an index with a weight_map: {error}") from error
    files: Dict[str, Set[str]] = {}
    for tensor, name in pairs:
        if not isinstance(name, str) or name != os.path.basename(name) or name in ("", ".", ".."):
            raise Corrupt(f"{path}: {name!r} is no name of a file in its folder")
        files.setdefault(os.path.join(os.path.dirname(path), name), set()).add(tensor)
    if not files:
        raise Corrupt(f"{path}: names no file")
    for name in files:
        if not os.path.exists(name):
            raise NotFound(f"{path} names {name}, which does not exist")
    return files


def _indexes_beside(path: str) -> List[str]:
    folder = os.path.dirname(path)
    names = (name for name in os.listdir(folder or ".") if kind_of_index(name) or name.endswith(_KERAS_INDEX))
    return [os.path.join(folder, name) for name in sorted(names)]


def refuse_part(path: str) -> None:
    """InvalidArgument for a file that has a part of a model: by its name (NAME-00001-of-00002.bin), or by an index in its folder that
    names it among others."""
    for place in {path, os.path.realpath(path)}:
        for index in _indexes_beside(place):
            try:
                files = files_of_index(index)
            except (Corrupt, NotFound, OSError):
                continue
            if len(files) > 1 and place in files:
                raise InvalidArgument(f"{path}: a part of a model; {index} names all its parts")
        numbered = _NUMBERED.search(os.path.basename(place).lower())
        if numbered and numbered.group(1) != "1":
            raise InvalidArgument(f"{path}: a part of a model, and no index beside it names the others")
