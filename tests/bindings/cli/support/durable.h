// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Whether what the program wrote would outlive the host's end: every file was synced before it got its name, and its
/// folder afterwards.

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/bindings/cli/support/program.h"

namespace freshet::cli_test {

/// One thread at a time.
class SyncJournal {
 public:
  explicit SyncJournal(std::string path) : path_(std::move(path)) {}

  /// What a program needs besides for its syncs to be noted.
  Environment environment() const;

  /// Why `path`, a file, a link or a folder, might be lost or torn with the host's end; empty when it cannot be.
  std::string lost(const std::string& path) const {
    namespace fs = std::filesystem;
    const std::vector<std::string> lines = read();
    const std::string own = inode_of(path);
    const std::size_t named = last("name " + own, lines);
    if (fs::is_regular_file(fs::symlink_status(path))) {
      const std::size_t synced = first("sync " + own, lines);
      if (synced == lines.size()) return path + " was not synced";
      if (named != lines.size() && synced > named) return path + " was synced after it got its name";
    }
    const std::size_t folder = last("sync " + inode_of(fs::path(path).parent_path()), lines);
    if (folder == lines.size()) return path + ": its folder was not synced";
    if (named != lines.size() && folder < named) return path + ": its folder was synced before the file got its name";
    return {};
  }

 private:
  /// The sanitizer wants to be loaded first.
  static std::string asan_options() {
    const char* const options = std::getenv("ASAN_OPTIONS");
    return (options == nullptr ? std::string() : options + std::string(":")) + "verify_asan_link_order=0";
  }
  static std::string inode_of(const std::string& path) {
    struct stat status = {};
    return ::lstat(path.c_str(), &status) == 0 ? std::to_string(status.st_ino) : "of nothing";
  }
  static std::size_t first(const std::string& line, const std::vector<std::string>& lines) {
    return static_cast<std::size_t>(std::find(lines.begin(), lines.end(), line) - lines.begin());
  }
  static std::size_t last(const std::string& line, const std::vector<std::string>& lines) {
    const auto found = std::find(lines.rbegin(), lines.rend(), line);
    return found == lines.rend() ? lines.size() : static_cast<std::size_t>(lines.rend() - found) - 1;
  }
  std::vector<std::string> read() const {
    std::vector<std::string> lines;
    std::ifstream in(path_);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }

  std::string path_;
};

}  // namespace freshet::cli_test
