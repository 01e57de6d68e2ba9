// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a host that loses power forgets: the ends of files that were not synced. A process that dies by a signal leaves
/// them in the kernel's memory, so a test takes them away itself.
///
/// The program that is to die notes each sync in a journal (crash_writer.cc); before it starts, and after it died, the
/// test stands on this side.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>

#include "core/base/check.h"

namespace freshet {

/// One sync: the file, and how long it was when the sync began.
struct SyncedFile {
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;
};

class UnsyncedFiles {
 public:
  /// All that is in the folder now counts as synced.
  explicit UnsyncedFiles(std::string folder) : folder_(std::move(folder)) {
    each_file([this](const std::string&, const SyncedFile& file) { synced_[file.inode] = file.bytes; });
  }

  enum class Fate { dropped, kept, torn };
  /// Takes away what was not synced; torn: of each file's end a part.
  void lose(const std::string& journal, Fate fate, std::mt19937_64& random) {
    std::ifstream in(journal, std::ios::binary);
    for (SyncedFile file; in.read(reinterpret_cast<char*>(&file), sizeof(file));) {
      std::uint64_t& bytes = synced_[file.inode];
      bytes = std::max(bytes, file.bytes);
    }
    if (fate == Fate::kept) return;
    each_file([&](const std::string& path, const SyncedFile& file) {
      const std::uint64_t synced = synced_[file.inode];
      if (file.bytes <= synced) return;
      const std::uint64_t keep = fate == Fate::torn ? random() % (file.bytes - synced) : 0;
      FRESHET_CHECK(::truncate(path.c_str(), static_cast<off_t>(synced + keep)) == 0);
    });
  }

 private:
  template <typename Each>
  void each_file(const Each& each) const {
    if (!std::filesystem::exists(folder_)) return;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      struct stat status = {};
      if (!entry.is_regular_file() || ::stat(entry.path().c_str(), &status) != 0) continue;
      each(entry.path().string(),
           {.inode = static_cast<std::uint64_t>(status.st_ino), .bytes = static_cast<std::uint64_t>(status.st_size)});
    }
  }

  const std::string folder_;
  std::map<std::uint64_t, std::uint64_t> synced_;  ///< By inode, since files are renamed.
};

}  // namespace freshet
