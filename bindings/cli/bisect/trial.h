// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Hands versions, and mixtures of two, to the user's command as safetensors files, and reads from its exit code what
/// they are, as `git bisect run` does.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bindings/cli/bisect/search.h"
#include "bindings/cli/frame/program.h"
#include "repo/repository.h"

namespace freshet::cli {

/// A command's verdict: 0 good, 125 skip, otherwise bad.
struct Judgement {
  Verdict verdict = Verdict::skipped;
  std::optional<int> exit_code;  ///< Absent where the command was not asked.
};

/// Two versions' tensors, mixed: all that `bad` has, of which those that `good` has too, with other bytes, can be
/// exchanged. One thread at a time.
class Mixture {
 public:
  /// Reads all bytes of `bad`, and those of `good` that differ.
  static Result<Mixture> read(const Repository& repository, const VersionName& good, const VersionName& bad);

  /// The tensors that can be exchanged, by name in `bad`, in the order of its architecture.
  const std::vector<std::string>& exchangeable() const { return names_; }
  /// Tensors of `bad` that `good` has not, or not of that shape: they are in every mixture.
  std::size_t new_tensors() const { return new_tensors_; }
  /// Whether both compute the same, so that `good` itself is the mixture that has nothing from `bad`.
  bool is_whole() const { return is_whole_; }
  std::uint64_t bytes_of(std::span<const std::size_t> exchangeable) const;
  /// `bad` with the tensors of `good`, except the tensors in `from_bad` (indices into exchangeable()).
  std::vector<TensorView> views(std::span<const std::size_t> from_bad) const;
  const Tags& tags() const { return tags_; }

 private:
  Mixture() = default;

  std::unique_ptr<std::byte[]> bad_memory_;
  std::unique_ptr<std::byte[]> good_memory_;
  std::vector<TensorView> bad_;              ///< All of them.
  std::vector<Bytes> good_;                  ///< Of those that can be exchanged.
  std::vector<std::uint32_t> exchangeable_;  ///< Indices into bad_.
  std::vector<std::string> names_;
  std::size_t new_tensors_ = 0;
  bool is_whole_ = true;
  Tags tags_;
};

/// One thread at a time. Files lie in a folder of its own below $TMPDIR, one at a time, and are gone when it is.
class Trials {
 public:
  Trials(const Program& program, std::string command) : program_(program), command_(std::move(command)) {}
  ~Trials();
  Trials(const Trials&) = delete;
  Trials& operator=(const Trials&) = delete;

  /// Skipped, and the command not asked, for a version that has no weights. Errors: cancelled; failed_precondition when
  /// a signal ended the command or its exit code is 126 or more.
  Result<Judgement> of_version(const Repository& repository, const VersionName& name);
  Result<Judgement> of_mixture(const Mixture& mixture, std::span<const std::size_t> from_bad);

  std::uint64_t runs() const { return runs_; }

 private:
  Result<Judgement> run(const std::string& name, std::span<const TensorView> tensors, const Tags& tags);

  const Program& program_;
  const std::string command_;
  std::string folder_;
  std::uint64_t runs_ = 0;
};

}  // namespace freshet::cli
