// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Operator graphs of published networks, read from a file: one JSON object a line with `name` and `v`, the vertices in
/// topological order, each `[config id, ordered input vertices, parameter bytes, 1 if its parameters were already used
/// by an earlier vertex]`.

#include <string>
#include <vector>

#include "core/base/result.h"
#include "examples/nas_spaces/network.h"

namespace freshet::nas {

struct Corpus {
  Palette palette;
  struct Graph {
    std::string name;
    Network network;
  };
  std::vector<Graph> graphs;
};

/// `path` names a text file (unpack a compressed one first). A vertex without inputs and parameters is an Input.
/// Parameters that were used before weigh nothing here. Errors: not_found, io_error; invalid_argument names the line.
Result<Corpus> read_corpus(const std::string& path);

}  // namespace freshet::nas
