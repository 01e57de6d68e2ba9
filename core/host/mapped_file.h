// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A file that is read in place: its bytes stay in the page cache, and take no memory of this process. A program that
/// writes to the file meanwhile changes the bytes. Where the file is cut short, or its disk fails, the bytes are zeros,
/// and the process goes on: the first mapping begins to handle SIGBUS, and hands signals of other origins on. So a
/// reader proves its bytes by a digest, or asks check_unchanged() afterwards. For programs of ours: a library leaves
/// its host's signals alone.

#include <memory>
#include <string>

#include "core/base/bytes.h"
#include "core/base/file_io.h"
#include "core/base/result.h"

namespace freshet {

/// Any thread.
class MappedFile {
 public:
  /// Maps the file, which `opened` is; `name` is for errors. out_of_space: there is no room for a mapping.
  static Result<std::unique_ptr<MappedFile>> map(OpenedFile opened, std::string name);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// As long as the file was when it was opened.
  Bytes bytes() const { return bytes_; }
  /// No error: up to now, bytes() were those of the time when the file was opened, as far as the file's size and time
  /// tell. unavailable otherwise.
  Status check_unchanged() const;

 private:
  struct Guard;
  struct Guards;
  MappedFile(OpenedFile file, std::string name) : file_(std::move(file)), name_(std::move(name)) {}

  const OpenedFile file_;
  const std::string name_;
  Bytes bytes_;
  Guard* guard_ = nullptr;
};

}  // namespace freshet
