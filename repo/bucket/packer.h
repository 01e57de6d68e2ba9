// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Uploads bytes of values as objects under new names. Small ones share an object; large ones are cut as digests are.

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/result.h"
#include "repo/log/log_store.h"
#include "repo/object_store/object_store.h"

namespace freshet::bucket {

/// One thread at a time.
class Packer {
 public:
  using Values = std::map<std::string, log::Value, std::less<>>;

  /// Both must outlive the packer.
  Packer(ObjectStore& store, log::LogStore& log) : store_(store), log_(log) {}

  /// Takes the value of `key`; the last one of a key counts. The bytes may be freed on return.
  Status add(std::string_view key, Bytes bytes);
  /// All values, with the places of their uploaded bytes. Nothing of them may be named before.
  Result<Values> finish();

 private:
  struct Packed {
    std::string key;
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };
  Result<log::ObjectName> upload(Bytes bytes);
  Status upload_pack();

  ObjectStore& store_;
  log::LogStore& log_;  ///< Draws the objects' names.
  Values values_;
  std::vector<std::byte> pack_;
  std::vector<Packed> packed_;
};

}  // namespace freshet::bucket
