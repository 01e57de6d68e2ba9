// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The answers of a rank to the questions of others: bytes of its folders, of its memory, and of the repository.

#include <memory>
#include <vector>

#include "core/base/result.h"
#include "repo/levels/external_level.h"
#include "repo/levels/rank/bringer.h"
#include "repo/levels/rank/job.h"
#include "repo/levels/rank/version_book.h"
#include "repo/levels/restart/question.h"
#include "transport/group/group.h"

namespace freshet::levels {

/// answer(): on the group's answering thread, and on the caller's of restore() when this rank asks itself.
class Answers {
 public:
  Answers(const Job& job, VersionBook& book, Bringer& bringer) : job_(job), book_(book), bringer_(bringer) {}

  Result<std::vector<std::byte>> answer(Bytes question);

  /// Opens the repository for restore(). Returns the rank that this one asks for what the repository has: itself, where
  /// it can open the repository.
  group::Rank open_to_read();
  /// REQUIRES: if it opened the repository, no other rank asked this one since.
  void close_to_read() {
    if (to_read_ != nullptr) to_read_.reset();  // Others may ask a rank that opened nothing.
  }

 private:
  ExternalLevel* external() const { return job_.external != nullptr ? job_.external.get() : to_read_.get(); }
  Result<std::vector<std::byte>> from_folders(const Question& question);
  Result<std::vector<std::byte>> from_memory(const Question& question);
  Result<std::vector<std::byte>> from_repository(const Question& question);
  Result<std::vector<std::byte>> table(const Digest& digest);

  const Job& job_;
  VersionBook& book_;
  Bringer& bringer_;
  std::unique_ptr<ExternalLevel> to_read_;  ///< Of a rank other than 0, while it restores.
};

}  // namespace freshet::levels
