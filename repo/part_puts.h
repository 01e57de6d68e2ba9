// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A put by parts: several processes bring the tensors of one version, and nobody needs all of them. One process begins
/// the put and gets a token. Each process that knows the token brings parts: whole tensors, or slices of tensors. One
/// commit then makes the version. Parts wait in the memory of the process that keeps the repository. So a put without a
/// commit leaves nothing in the repository. This is true also if a process that brings parts dies, and if the
/// repository's process dies.
///
///     PartPuts& parts = repository.part_puts();
///     PutToken token = *parts.begin_put("net", id, architecture);          // One process.
///     parts.put_parts(token, std::vector{whole_part(*architecture, 3, bytes)});  // Any process, any thread.
///     VersionName name = *parts.commit_put(token, manifest, {});           // One process, after all parts.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/clock.h"
#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/model/graph.h"
#include "core/model/ids.h"
#include "core/model/manifest.h"
#include "core/model/tensor.h"
#include "repo/repository.h"

namespace freshet {

/// Names a put by parts, in any process. Random: who does not know the token cannot bring parts.
struct PutToken {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  std::string provider;  ///< The id of the provider that collects the parts; empty if there is only one.

  auto operator<=>(const PutToken&) const = default;
};
/// 32 hexadecimal digits, then "@PROVIDER" if there is one.
std::string to_string(const PutToken& token);
/// The inverse of to_string(); invalid_argument for other text.
Result<PutToken> parse_put_token(std::string_view text);

/// A put by parts ends this long after the last call with its token. A call that is still running keeps the put.
inline constexpr Duration kPutLease = std::chrono::minutes(2);
/// Puts by parts of one process at the same time.
inline constexpr std::size_t kPartPutsMax = 256;
/// The share of clients with one key at a repository's server.
inline constexpr std::ptrdiff_t kPartPutsOfOneMax = 64;

/// Bytes of one tensor: `count` runs of `length` bytes. Run i begins at byte offset + i·stride of the tensor.
struct TensorPart {
  std::uint32_t tensor = 0;  ///< Index among the architecture's tensors.
  std::uint64_t offset = 0;
  std::uint64_t count = 1;
  std::uint64_t stride = 0;  ///< With several runs: at least `length`.
  std::uint64_t length = 0;
  Bytes bytes;                   ///< The runs one after another, count·length bytes.
  std::optional<Digest> digest;  ///< Of `bytes`. With it, other bytes are refused; without it, they count as they are.
};
/// invalid_argument unless the part has bytes, as many as its runs, and lies inside a tensor of `architecture`. The
/// message names the tensor.
Status check_part(const TensorPart& part, const Architecture& architecture);
/// All of a tensor. REQUIRES: the index exists.
TensorPart whole_part(const Architecture& architecture, std::uint32_t tensor, Bytes bytes);
/// The parts of a tensor's slice: `extent` elements from `offset` on, on each axis; `bytes` has them in row-major
/// order. One part if the slice is shorter than the tensor on only one axis; none for a slice without elements.
/// invalid_argument: it lies outside of the tensor, or has other bytes, or rows that begin or end inside a byte.
Result<std::vector<TensorPart>> slice_parts(const Architecture& architecture, std::uint32_t tensor, const Shape& offset,
                                            const Shape& extent, Bytes bytes);

/// The calls of a put by parts; Repository::part_puts() has them. Any thread. Every call with a token is not_found if
/// no put here has the token: it was never begun, was committed or aborted, or ended (kPutLease).
class PartPuts {
 public:
  virtual ~PartPuts() = default;

  /// Begins a put of version `id` of `model`. already_exists if this version is stored, or was. out_of_space if
  /// kPartPutsMax puts are open.
  virtual Result<PutToken> begin_put(const std::string& model, const VersionId& id,
                                     std::shared_ptr<const Architecture> architecture) = 0;
  /// Brings parts. On return the caller may free the bytes. A part that is given again, with the same runs and the same
  /// bytes, changes nothing; so a call may be repeated. After an error, parts before the failing one may have come.
  ///   already_exists: the same runs came with other bytes, or the part overlaps another one. The message names the
  ///     tensor.
  ///   corrupt: the bytes do not match the part's digest.
  ///   failed_precondition: the put is being committed.
  ///   out_of_space: Repository::Options::part_bytes_max, or no memory.
  virtual Status put_parts(const PutToken& token, std::span<const TensorPart> parts) = 0;
  /// The digest of each tensor, by index; nothing for a tensor without a part. So a caller can find what did not
  /// change, and let the version inherit it. failed_precondition if bytes of a tensor that has parts are missing; the
  /// message names the tensor.
  virtual Result<std::vector<std::optional<Digest>>> part_digests(const PutToken& token) = 0;
  /// Repository::put() with the parts in the place of its callback. The manifest has the model, the identity and the
  /// architecture of begin_put(). A digest of zeros stands for the digest of the bytes that came. Parts of tensors that
  /// are stored already are dropped. Errors as put(), after which the put by parts stays open, and:
  ///   invalid_argument: the token belongs to a put of another model, version or architecture.
  ///   failed_precondition: bytes of a tensor are missing, which the message names; or a part is still on its way; or
  ///     another provider became the version's home since begin_put(): begin the put again.
  ///   already_exists: this version is stored. You also get this error if you repeat a commit that succeeded, but whose
  ///   answer was lost.
  virtual Result<VersionName> commit_put(const PutToken& token, const Manifest& manifest,
                                         Repository::PutOptions options) = 0;
  /// Ends the put and drops its parts.
  virtual Status abort_put(const PutToken& token) = 0;
};

}  // namespace freshet
