// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Plain files, which checkpoints are compared with, and what folders hold.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/model/tensor.h"

namespace freshet::benchmarks {

/// A folder of its own in `parent`; it goes with this object.
class MadeFolder {
 public:
  static Result<MadeFolder> in(const std::string& parent);
  ~MadeFolder();
  MadeFolder(MadeFolder&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  MadeFolder(const MadeFolder&) = delete;
  MadeFolder& operator=(const MadeFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  explicit MadeFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

Status write_and_sync(const std::string& path, const std::vector<Bytes>& parts);
Status read_file(const std::string& path, const std::vector<MutableBytes>& parts);
/// The page cache forgets all files of the folder.
Status forget(const std::string& folder);
/// The bytes of disk that a folder's files occupy. With `endings`, only a file counts whose name ends with one of them.
std::uint64_t bytes_on_disk(const std::string& folder, const std::vector<std::string>& endings = {});

}  // namespace freshet::benchmarks
