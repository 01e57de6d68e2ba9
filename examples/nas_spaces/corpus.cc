// SPDX-License-Identifier: Apache-2.0
#include "examples/nas_spaces/corpus.h"

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/format.h"
#include "core/json/canonical_json.h"

namespace freshet::nas {
namespace {

using Json = nlohmann::json;

LayerKind kind_of(const Json& vertex, bool input, std::uint32_t ordinal) {
  const auto bytes = vertex.at(2).get<std::uint64_t>();
  const bool used_before = vertex.at(3).get<int>() != 0;
  LayerKind kind{.class_name = input ? "Input" : "Operator"};
  kind.config = "{\"id\":";
  append_json_string(kind.config, vertex.at(0).get_ref<const std::string&>());
  if (used_before) kind.config += ",\"parameters\":\"used before\"";
  kind.config += '}';
  if (input) kind.ordinal = ordinal;
  if (bytes != 0 && !used_before) kind.tensors.push_back({.name = "parameters", .shape = {bytes}, .dtype = DType::u8});
  return kind;
}

Status read_graph(const Json& line, Corpus& corpus) {
  Corpus::Graph graph{.name = line.at("name").get<std::string>(), .network = {}};
  std::uint32_t inputs = 0;
  for (const Json& vertex : line.at("v")) {
    std::vector<std::uint32_t> sources;
    for (const Json& source : vertex.at(1)) {
      sources.push_back(source.get<std::uint32_t>());
      if (sources.back() >= graph.network.size()) return fail(Code::invalid_argument, "an input that comes later");
    }
    const bool input = sources.empty() && vertex.at(2) == 0;
    graph.network.add(corpus.palette.add(kind_of(vertex, input, inputs)), sources);
    if (input) ++inputs;
  }
  corpus.graphs.push_back(std::move(graph));
  return {};
}

}  // namespace

Result<Corpus> read_corpus(const std::string& path) {
  std::ifstream file(path);
  if (!file) return fail_errno(errno, path);
  Corpus corpus;
  std::size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    try {
      const Status status = read_graph(Json::parse(line), corpus);
      if (!status)
        return fail(Code::invalid_argument, format("{}, line {}: {}", path, number, status.error().message()));
    } catch (const Json::exception& error) {
      return fail(Code::invalid_argument, format("{}, line {}: {}", path, number, error.what()));
    }
  }
  return corpus;
}

}  // namespace freshet::nas
