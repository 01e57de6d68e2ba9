// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/repo_put/rocksdb_peers.h"

#include <rocksdb/db.h>

#include <algorithm>

#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr std::size_t kChunkBytes = 1 << 20;

Status status_of(const rocksdb::Status& status) {
  if (status.ok()) return {};
  return fail(Code::io_error, status.ToString());
}

class Peer final : public RocksPeer {
 public:
  Peer(std::unique_ptr<rocksdb::DB> db, Way way) : db_(std::move(db)), way_(way) {}

  Status put(const std::string& key, const std::vector<Bytes>& payloads) override {
    rocksdb::WriteOptions options;
    options.disableWAL = way_ != Way::log;
    std::uint32_t chunk = 0;
    for (const Bytes payload : payloads) {
      for (std::size_t offset = 0; offset < payload.size(); offset += kChunkBytes) {
        const Bytes bytes = payload.subspan(offset, std::min(kChunkBytes, payload.size() - offset));
        const rocksdb::Slice value(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        FRESHET_TRY(status_of(db_->Put(options, format("{}/{:08}", key, chunk++), value)));
      }
    }
    return status_of(way_ == Way::log ? db_->SyncWAL() : db_->Flush({}));
  }

 private:
  const std::unique_ptr<rocksdb::DB> db_;
  const Way way_;
};

}  // namespace

Result<std::unique_ptr<RocksPeer>> RocksPeer::open(const std::string& folder, Way way) {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compression = rocksdb::kNoCompression;
  options.enable_blob_files = way == Way::no_log_blob_files;
  options.min_blob_size = 4096;
  rocksdb::DB* db = nullptr;
  FRESHET_TRY(status_of(rocksdb::DB::Open(options, folder, &db)));
  return std::make_unique<Peer>(std::unique_ptr<rocksdb::DB>(db), way);
}

}  // namespace freshet::benchmarks
