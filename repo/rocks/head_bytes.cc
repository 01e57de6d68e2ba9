// SPDX-License-Identifier: Apache-2.0
#include "repo/rocks/head_bytes.h"

#include <string>

#include "repo/records/records.h"
#include "repo/rocks/store.h"

namespace freshet {
namespace {

constexpr char kHeadBytesProperty[] = "freshet.head_bytes";

/// One table's.
class HeadBytesNotes final : public rocksdb::TablePropertiesCollector {
 public:
  rocksdb::Status AddUserKey(const rocksdb::Slice& key, const rocksdb::Slice& value, rocksdb::EntryType type,
                             rocksdb::SequenceNumber, std::uint64_t) override {
    if (type == rocksdb::kEntryPut && !key.empty() && key[0] == kHeadPrefix) bytes_ += value.size();
    return rocksdb::Status::OK();
  }
  rocksdb::Status Finish(rocksdb::UserCollectedProperties* properties) override {
    (*properties)[kHeadBytesProperty] = std::to_string(bytes_);
    return rocksdb::Status::OK();
  }
  rocksdb::UserCollectedProperties GetReadableProperties() const override {
    return {{kHeadBytesProperty, std::to_string(bytes_)}};
  }
  const char* Name() const override { return "freshet.HeadBytesNotes"; }

 private:
  std::uint64_t bytes_ = 0;
};

class HeadBytesNotesFactory final : public rocksdb::TablePropertiesCollectorFactory {
 public:
  rocksdb::TablePropertiesCollector* CreateTablePropertiesCollector(Context) override { return new HeadBytesNotes(); }
  const char* Name() const override { return "freshet.HeadBytesNotesFactory"; }
};

}  // namespace

std::shared_ptr<rocksdb::TablePropertiesCollectorFactory> make_head_bytes_notes() {
  return std::make_shared<HeadBytesNotesFactory>();
}

std::optional<std::uint64_t> noted_head_bytes(const rocksdb::TableProperties& table) {
  const auto noted = table.user_collected_properties.find(kHeadBytesProperty);
  if (noted == table.user_collected_properties.end()) return std::nullopt;
  const Result<std::uint64_t> bytes = parse_number(noted->second);
  return bytes ? std::optional(*bytes) : std::nullopt;
}

}  // namespace freshet
