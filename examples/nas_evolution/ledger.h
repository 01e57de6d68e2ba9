// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A search's book of what the repository acknowledged, for a program that compares the two later
/// (scripts/many_hosts.sh). A line of JSON for each event; a line is whole or not there, however the search ends:
///
///     {"stored": "candidate-7@1", "sha256": "…"}    after put() named the version
///     {"retiring": "candidate-7@1"}                 before retire() is called
///
/// The sum is over the candidate's own memory: for each tensor, ordered by name, the name, a zero byte and the bytes.

#include <string>

#include "core/base/file_descriptor.h"
#include "core/base/result.h"
#include "core/model/ids.h"
#include "examples/nas_evolution/candidate.h"

namespace freshet::nas {

/// Any thread.
class Ledger {
 public:
  /// Lines go behind those of an existing file.
  static Result<Ledger> open(const std::string& path);

  Status stored(const VersionName& version, const Candidate& candidate) const;
  Status retiring(const VersionName& version) const;

 private:
  explicit Ledger(FileDescriptor file) : file_(std::move(file)) {}
  FileDescriptor file_;
};

}  // namespace freshet::nas
