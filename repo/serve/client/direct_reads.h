// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How a client without credentials reads large tensors from the store itself: one question to the owner for many
/// tensors, a request for each of their objects, and each tensor is proved by its digest. Private to this folder.

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "repo/object_store/object_store.h"
#include "repo/provider_repository.h"
#include "repo/serve/client/direct_line.h"
#include "repo/serve/wire/questions.h"

namespace freshet::rpc {

/// Any thread.
class DirectReads {
 public:
  using TensorRead = Repository::TensorRead;
  /// Asks the owner. unsupported: the repository is in no store.
  using AskSigned = std::function<Result<SignedReads>(const SignReads& question)>;
  /// `line` outlives the object.
  explicit DirectReads(DirectLine& line) : line_(line) {}

  /// Fills what it can, and returns the reads that are left. Nothing is written into their memory any more.
  std::vector<TensorRead> read(const VersionRecord& record, std::span<const TensorRead> reads, const AskSigned& ask);

 private:
  /// A whole object, of 64 MiB at most: a tensor, or a part of one as digests cut it.
  struct Piece {
    std::size_t read = 0;  ///< Its place in the batch.
    const SignedRequest* request = nullptr;
    MutableBytes out;
    bool came = false;
    bool is_late = false;  ///< Its request was too old when its turn came.
    Digest digest;
  };
  struct Sorted {
    std::vector<TensorRead> late;
    std::vector<TensorRead> missed;
  };

  static std::vector<Piece> pieces_of(std::span<const TensorRead> batch, const SignedReads& answer);
  static Status fetch(SignedObjects& objects, std::vector<Piece>& pieces, Time last_begin);
  static Sorted sort(const Manifest& manifest, std::span<const TensorRead> batch, const std::vector<Piece>& pieces);

  DirectLine& line_;
};

}  // namespace freshet::rpc
