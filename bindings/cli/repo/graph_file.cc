#include "bindings/cli/repo/graph_file.h"

#include <fstream>

namespace freshet::cli {
namespace {

constexpr std::uint64_t kGraphBytesMax = std::uint64_t{1} << 30;

}  // namespace

Result<std::shared_ptr<const Architecture>> read_graph(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return fail_errno(errno, path);
  const auto bytes = static_cast<std::int64_t>(file.tellg());
  if (bytes < 0 || static_cast<std::uint64_t>(bytes) > kGraphBytesMax) {
    return fail(Code::invalid_argument, path + ": not a graph file that can be read");
  }
  std::string text(static_cast<std::size_t>(bytes), '\0');
  if (!file.seekg(0).read(text.data(), bytes)) return fail(Code::io_error, path + ": cannot be read");
  Result<std::shared_ptr<const Architecture>> graph = parse_graph_json(text);
  if (!graph) return fail(std::move(graph).error().with_context(path));
  return graph;
}

}  // namespace freshet::cli
