// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/frame/graph_file.h"

#include <utility>

#include "core/base/file_io.h"

namespace freshet::cli {
namespace {

constexpr std::uint64_t kGraphBytesMax = std::uint64_t{1} << 30;

}  // namespace

Result<std::string> read_text_file(const std::string& path, std::uint64_t bytes_max) {
  return read_file(path, bytes_max).map([](FileText read) { return std::move(read.text); });
}

Result<std::shared_ptr<const Architecture>> read_graph(const std::string& path) {
  FRESHET_ASSIGN(const std::string text, read_text_file(path, kGraphBytesMax));
  Result<std::shared_ptr<const Architecture>> graph = parse_graph_json(text);
  if (!graph) return fail(std::move(graph).error().with_context(path));
  return graph;
}

}  // namespace freshet::cli
