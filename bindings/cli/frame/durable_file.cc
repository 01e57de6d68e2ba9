// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/frame/durable_file.h"

#include <filesystem>
#include <vector>

#include "core/base/env.h"
#include "core/base/format.h"

namespace freshet::cli {

Status make_folder(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<fs::path> missing;
  for (fs::path folder = fs::absolute(path, error).lexically_normal(); !error && !fs::exists(folder, error);) {
    if (error) break;
    if (folder.has_filename()) missing.push_back(folder);
    if (folder == folder.parent_path()) break;
    folder = folder.parent_path();
  }
  if (!error) fs::create_directories(path, error);
  if (error) return fail_errno(error.value(), format("make folder {}", path));
  for (const fs::path& folder : missing) FRESHET_TRY(system_env().sync_folder(folder.parent_path().string()));
  return {};
}

Status as_output_error(Status written, const std::string& path) {
  if (written || written.error().code() != Code::not_found) return written;
  return fail(Code::failed_precondition, format("{}: its folder does not exist ({})", path, written.error().message()));
}

Status write_text_file(const std::string& path, std::string_view text) {
  const Bytes pieces[] = {bytes_of(text.data(), text.size())};
  return as_output_error(write_file_atomically(system_env(), path, pieces, true), path);
}

}  // namespace freshet::cli
