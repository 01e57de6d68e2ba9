// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/frame/graph_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <fstream>

#include "core/base/format.h"

namespace freshet::cli {
namespace {

constexpr std::uint64_t kGraphBytesMax = std::uint64_t{1} << 30;

}  // namespace

Result<std::string> read_text_file(const std::string& path, std::uint64_t bytes_max) {
  // Looked at first: opening a pipe waits for its writer.
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return fail_errno(errno, path);
  if (!S_ISREG(status.st_mode)) return fail(Code::invalid_argument, path + ": not a regular file");
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  if (bytes > bytes_max) return fail(Code::invalid_argument, format("{}: it has more than {} bytes", path, bytes_max));
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail_errno(errno, path);
  std::string text(bytes, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(bytes))) {
    return fail(Code::io_error, path + ": cannot be read");
  }
  return text;
}

Result<std::shared_ptr<const Architecture>> read_graph(const std::string& path) {
  FRESHET_ASSIGN(const std::string text, read_text_file(path, kGraphBytesMax));
  Result<std::shared_ptr<const Architecture>> graph = parse_graph_json(text);
  if (!graph) return fail(std::move(graph).error().with_context(path));
  return graph;
}

}  // namespace freshet::cli
