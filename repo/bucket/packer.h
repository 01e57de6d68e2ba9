// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Uploads bytes of values as objects under new names, several at a time. Small values share an object, also with those
/// of other packers that finish at the same time; large ones are cut as digests are.

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/digest.h"
#include "core/base/result.h"
#include "repo/bucket/crew.h"
#include "repo/bucket/shared_packs.h"
#include "repo/log/log_store.h"
#include "repo/object_store/object_store.h"

namespace freshet::bucket {

/// A value from here on has objects of its own.
inline constexpr std::size_t kOwnObjectBytes = std::size_t{1} << 20;
/// An object of several values is not much larger.
inline constexpr std::size_t kPackBytes = std::size_t{8} << 20;

/// One thread at a time.
class Packer {
 public:
  using Values = std::map<std::string, log::Value, std::less<>>;

  /// All must outlive the packer.
  Packer(ObjectStore& store, log::LogStore& log, SharedPacks& shared)
      : store_(store), log_(log), shared_(shared), crew_(store.transfers_max()) {}

  /// Takes the value of `key`; the last one of a key counts. Answers the digest of the bytes that the store gets: it
  /// refuses other ones. The bytes stay as they are until wait() or finish(). An error may be that of an earlier value.
  Result<Digest> add(std::string_view key, Bytes bytes);
  /// Until the bytes of all calls so far may be freed.
  Status wait() { return crew_.finish(); }
  /// All values, with the places of their uploaded bytes. Nothing of them may be named before.
  Result<Values> finish();

 private:
  struct Packed {
    std::string key;
    std::size_t offset = 0;
    std::size_t bytes = 0;
    Digest digest;
  };

  Result<log::ObjectName> upload(Bytes bytes, std::shared_ptr<const Pack> kept);
  Result<Digest> add_to_pack(std::string_view key, Bytes bytes);
  Status upload_pack();
  void place_packed(const log::ObjectName& object, std::size_t offset);

  ObjectStore& store_;
  log::LogStore& log_;  ///< Draws the objects' names.
  SharedPacks& shared_;
  Values values_;
  std::shared_ptr<Pack> pack_ = std::make_shared<Pack>();
  std::vector<Packed> packed_;
  Crew crew_;  ///< Last, so that it ends first.
};

}  // namespace freshet::bucket
