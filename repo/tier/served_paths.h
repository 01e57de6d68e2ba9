// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Tiers for a C++ program of one's own, without the reader: where a file is to be read now.
///
///     FRESHET_ASSIGN(const tier::Config config, tier::read_config("tiers.toml"));
///     FRESHET_ASSIGN(const tier::ServedPaths paths, tier::ServedPaths::open(config));
///     auto file = SafetensorsFile::read(paths.place_of("/pfs/model.safetensors"));
///
/// A copy may go between the answer and the read (evicted, dropped): whoever cannot open it reads the path that was
/// asked for. Any thread.

#include <memory>
#include <string>

#include "core/base/result.h"
#include "repo/tier/config.h"

namespace freshet::tier {

class BoardFile;

class ServedPaths {
 public:
  /// unavailable when shared memory cannot be had.
  static Result<ServedPaths> open(const Config& config);
  ServedPaths(ServedPaths&& other) noexcept;
  ServedPaths& operator=(ServedPaths&& other) noexcept;
  ~ServedPaths();

  /// Returns the path of the finished copy, if the copy has the file's present state. Otherwise returns `path` itself:
  /// the file is below no source, or has no such copy yet. If the file is below a source and fits a tier, but has no
  /// such copy, place_of() asks the keeper to make the copy. Looks at the source once, and counts as an open.
  std::string place_of(const std::string& path) const;

 private:
  explicit ServedPaths(BoardFile board);

  std::unique_ptr<BoardFile> board_;
};

}  // namespace freshet::tier
