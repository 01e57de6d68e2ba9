// SPDX-License-Identifier: Apache-2.0
#include "repo/rocks/blocks.h"

#include <cstdint>

#include <rocksdb/table.h>

namespace freshet {
namespace {

/// One table's. RocksDB asks it before each key whether the block ends here.
class BlockLayout final : public rocksdb::FlushBlockPolicy {
 public:
  BlockLayout(std::uint64_t block_bytes, bool by_kind) : block_bytes_(block_bytes), by_kind_(by_kind) {}

  bool Update(const rocksdb::Slice& key, const rocksdb::Slice& value) override {
    const std::uint64_t bytes = key.size() + value.size();
    const char kind = by_kind_ && !key.empty() ? key[0] : '\0';
    const bool ends = block_ != 0 && (block_ + bytes > block_bytes_ || kind != kind_);
    block_ = ends ? bytes : block_ + bytes;
    kind_ = kind;
    return ends;
  }

 private:
  const std::uint64_t block_bytes_;
  const bool by_kind_;
  std::uint64_t block_ = 0;
  char kind_ = '\0';
};

class Layouts final : public rocksdb::FlushBlockPolicyFactory {
 public:
  explicit Layouts(bool by_kind) : by_kind_(by_kind) {}
  const char* Name() const override { return "freshet.BlockLayout"; }
  rocksdb::FlushBlockPolicy* NewFlushBlockPolicy(const rocksdb::BlockBasedTableOptions& table,
                                                 const rocksdb::BlockBuilder&) const override {
    return new BlockLayout(table.block_size, by_kind_);
  }

 private:
  const bool by_kind_;
};

}  // namespace

std::shared_ptr<rocksdb::FlushBlockPolicyFactory> make_block_layout(bool by_kind) {
  return std::make_shared<Layouts>(by_kind);
}

}  // namespace freshet
