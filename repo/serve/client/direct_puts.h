// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How a client without credentials brings large tensors of a put into the store itself, under names that the owner
/// drew, by requests that say length and checksum. The put then names them, and its owner looks whether they are there.
/// Private to this folder.

#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/result.h"
#include "repo/provider_repository.h"
#include "repo/serve/client/direct_line.h"
#include "repo/serve/wire/questions.h"

namespace freshet::rpc {

/// Any thread.
class DirectPuts {
 public:
  using BytesOf = std::function<Result<Bytes>(std::uint32_t tensor)>;
  /// The question to the owner.
  struct Owner {
    std::function<Result<std::vector<std::uint32_t>>()> wanted;
    /// unsupported: the repository is in no store.
    std::function<Result<SignedForPut>(const SignUploads& question)> sign;
  };
  /// `line` outlives the object.
  explicit DirectPuts(DirectLine& line) : line_(line) {}

  /// The tensors that it could bring. The put asks `bytes_of` again for the others, also for those whose bytes are not
  /// the manifest's.
  std::vector<BroughtTensor> bring(const Manifest& manifest, const Repository::PutOptions& options,
                                   const BytesOf& bytes_of, const Owner& owner);

 private:
  /// A tensor, or a part of one as digests cut it: an object.
  struct Piece {
    std::uint32_t tensor = 0;
    Bytes bytes;
    BroughtPart part;
    bool came = false;
  };
  /// Whether the owner of a store answers.
  bool signs(const Owner& owner);
  static std::vector<std::uint32_t> large_of(const Manifest& manifest, std::vector<std::uint32_t> wanted);
  /// Takes tensors from the end of the list, as many as one question has.
  static std::vector<Piece> next_pieces(std::vector<std::uint32_t>& tensors, const Manifest& manifest,
                                        const BytesOf& bytes_of);
  static Status prove(std::vector<Piece>& pieces, const Manifest& manifest);
  static Status upload(SignedObjects& objects, std::vector<Piece>& pieces, const SignedUploads& signed_uploads,
                       Time last_begin);
  static void append_whole(std::vector<BroughtTensor>& brought, std::vector<Piece>& pieces);

  DirectLine& line_;
};

}  // namespace freshet::rpc
