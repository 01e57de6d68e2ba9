// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "core/base/format.h"
#include "repo/records/records_generated.h"
#include "repo/rocks/store.h"

namespace freshet {

std::string head_key(std::string_view blob) { return std::string(1, kHeadPrefix).append(blob); }
std::string inline_key(std::string_view blob) { return std::string(1, 'p').append(blob); }

std::string chunk_key(std::string_view blob, std::uint32_t chunk) {
  // A zero byte becomes 00 ff, and 00 01 ends the blob's key: so no key is the beginning of another one, and the order
  // of the keys stays.
  std::string key;
  key.reserve(blob.size() + 16);
  for (const char c : blob) {
    key.push_back(c);
    if (c == '\0') key.push_back('\xff');
  }
  key.append("\0\1", 2);
  for (int shift = 24; shift >= 0; shift -= 8) key.push_back(static_cast<char>((chunk >> shift) & 0xff));
  return key;
}

std::optional<std::string> blob_of_chunk_key(std::string_view key) {
  std::string blob;
  for (std::size_t at = 0; at < key.size(); ++at) {
    blob.push_back(key[at]);
    if (key[at] != '\0') continue;
    if (at + 1 == key.size()) return std::nullopt;
    if (key[++at] == '\1') {
      blob.pop_back();
      return blob;
    }
    if (key[at] != '\xff') return std::nullopt;
  }
  return std::nullopt;
}

std::string encode(const BlobHead& head) {
  flatbuffers::FlatBufferBuilder builder(64);
  builder.Finish(stored::CreateBlobHead(builder, head.bytes, head.chunk_bytes));
  return std::string(reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize());
}

Result<BlobHead> decode_blob_head(std::string_view value) {
  alignas(8) std::uint8_t buffer[64];
  if (value.size() >= sizeof(flatbuffers::uoffset_t) && value.size() <= sizeof(buffer)) {
    std::memcpy(buffer, value.data(), value.size());
    flatbuffers::Verifier verifier(buffer, value.size());
    if (verifier.VerifyBuffer<stored::BlobHead>(nullptr)) {
      const auto* head = flatbuffers::GetRoot<stored::BlobHead>(buffer);
      const BlobHead result{.bytes = head->bytes(), .chunk_bytes = head->chunk_bytes()};
      const bool indexable = result.chunk_bytes == 0 || result.bytes / result.chunk_bytes < 0xffffffffULL;
      if (indexable) return result;
    }
  }
  return fail(Code::corrupt, "the blob's head is damaged");
}

Status status_of(const rocksdb::Status& status, std::string_view what) {
  if (status.ok()) return {};
  Code code = Code::io_error;
  if (is_no_space(status) || status.IsMemoryLimit()) {
    code = Code::out_of_space;
  } else if (status.IsNotFound() || status.IsPathNotFound()) {
    code = Code::not_found;
  } else if (status.IsCorruption()) {
    code = Code::corrupt;
  } else if (status.IsBusy() || status.IsTryAgain() || status.IsIncomplete() || status.IsShutdownInProgress()) {
    code = Code::unavailable;
  } else if (status.IsTimedOut()) {
    code = Code::timed_out;
  } else if (status.IsInvalidArgument()) {
    code = Code::invalid_argument;
  } else if (status.IsNotSupported()) {
    code = Code::unsupported;
  }
  return fail(code, format("{}: {}", what, status.ToString()));
}

}  // namespace freshet
