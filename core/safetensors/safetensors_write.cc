// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_set>

#include "core/base/env.h"
#include "core/base/file_io.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "core/json/canonical_json.h"
#include "core/safetensors/safetensors.h"
#include "core/safetensors/tensors_that_come.h"

namespace freshet {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::size_t kCompareBytes = std::size_t{1} << 20;

Status check_tensors(std::span<const TensorView> tensors) {
  std::unordered_set<std::string_view> names;
  for (const TensorView& tensor : tensors) {
    FRESHET_TRY(tensor.spec.check());
    FRESHET_TRY(check_readable_by_host(tensor));
    const std::string name = shown(tensor.spec.name);
    if (tensor.spec.name == kMetadataKey) return refuse(format("a tensor cannot be named {}", kMetadataKey));
    if (!names.insert(tensor.spec.name).second) return refuse(format("two tensors are named {}", name));
    if (tensor.data.size() != tensor.spec.bytes()) {
      return refuse(format("tensor {}: {} bytes for {}", name, tensor.data.size(),
                           describe(tensor.spec.dtype, tensor.spec.shape)));
    }
  }
  return {};
}

Status append_metadata(std::string& json, const SafetensorsMetadata& metadata) {
  std::unordered_set<std::string_view> keys;
  append_json_string(json, kMetadataKey);
  json += ":{";
  for (const auto& [key, value] : metadata) {
    if (!is_utf8(key) || !is_utf8(value)) return refuse(format("metadata {} is not UTF-8", shown(key)));
    if (!keys.insert(key).second) return refuse(format("metadata {} stands twice", shown(key)));
    if (json.back() != '{') json += ',';
    append_json_string(json, key);
    json += ':';
    append_json_string(json, value);
  }
  json += '}';
  return {};
}

void append_tensor(std::string& json, const TensorSpec& spec, std::uint64_t begin) {
  append_json_string(json, spec.name);
  json += format(":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", safetensors_name_of(spec.dtype),
                 fmt::join(spec.shape, ","), begin, begin + spec.bytes());
}

/// The length and the JSON, padded with spaces so that the data starts on a multiple of eight bytes.
Result<std::string> header_for(std::span<const TensorView> tensors, const SafetensorsMetadata& metadata) {
  FRESHET_TRY(check_tensors(tensors));
  std::string json = "{";
  if (!metadata.empty()) FRESHET_TRY(append_metadata(json, metadata));
  std::uint64_t offset = 0;
  for (const TensorView& tensor : tensors) {
    if (json.size() > 1) json += ',';
    append_tensor(json, tensor.spec, offset);
    offset += tensor.data.size();
  }
  json += '}';
  while (json.size() % 8 != 0) json += ' ';
  if (json.size() > kSafetensorsHeaderBytesMax) {
    return refuse(format("a header of {} bytes is over the limit of {}", json.size(), kSafetensorsHeaderBytesMax));
  }
  std::string header;
  for (int i = 0; i < 8; ++i) header += static_cast<char>((json.size() >> (8 * i)) & 0xff);
  return header + json;
}

/// The header and the tensors' bytes, as they follow each other in the file; `header` is what the first one lies in.
std::vector<Bytes> pieces_of(const std::string& header, std::span<const TensorView> tensors) {
  std::vector<Bytes> pieces = {std::as_bytes(std::span(header))};
  for (const TensorView& tensor : tensors) pieces.push_back(tensor.data);
  return pieces;
}

using Ready = std::function<Status(std::size_t tensor)>;

/// Waits for each tensor before it is appended. The header is appended before them.
class WaitingFile final : public WritableFile {
 public:
  WaitingFile(std::unique_ptr<WritableFile> file, const Ready& ready) : file_(std::move(file)), ready_(ready) {}
  Status append(Bytes bytes) override {
    if (appended_ > 0) FRESHET_TRY(ready_(appended_ - 1));
    ++appended_;
    return file_->append(bytes);
  }
  void expect_sync() override { file_->expect_sync(); }
  Status sync() override { return file_->sync(); }
  Status close() override { return file_->close(); }

 private:
  const std::unique_ptr<WritableFile> file_;
  const Ready& ready_;
  std::size_t appended_ = 0;
};

/// An Env whose files wait for tensors.
class WaitingEnv final : public Env {
 public:
  WaitingEnv(Env& env, const Ready& ready) : env_(env), ready_(ready) {}
  Result<std::unique_ptr<WritableFile>> create_file(const std::string& path) override {
    FRESHET_ASSIGN(std::unique_ptr<WritableFile> file, env_.create_file(path));
    return std::make_unique<WaitingFile>(std::move(file), ready_);
  }
  Status rename_file(const std::string& from, const std::string& to) override { return env_.rename_file(from, to); }
  Status remove_file(const std::string& path) override { return env_.remove_file(path); }
  Status sync_folder(const std::string& path) override { return env_.sync_folder(path); }
  void fill_random(MutableBytes out) override { env_.fill_random(out); }
  std::optional<std::string> variable(const std::string& name) const override { return env_.variable(name); }

 private:
  Env& env_;
  const Ready& ready_;
};

/// Whether the file has just these bytes. not_found when there is no file.
Result<bool> has_bytes(const std::string& path, std::span<const Bytes> pieces) {
  const Result<OpenedFile> file = open_regular(path);
  if (!file && file.error().code() == Code::invalid_argument) return false;  // No regular file.
  if (!file) return fail(file.error());
  std::uint64_t bytes = 0;
  for (const Bytes piece : pieces) bytes += piece.size();
  if (static_cast<std::uint64_t>(file->status.st_size) != bytes) return false;
  std::vector<std::byte> buffer(kCompareBytes);
  std::uint64_t offset = 0;
  for (Bytes piece : pieces) {
    while (!piece.empty()) {
      const MutableBytes part(buffer.data(), std::min(buffer.size(), piece.size()));
      FRESHET_ASSIGN(const std::size_t got, read_up_to(file->descriptor.get(), part, offset, path));
      if (got != part.size() || !std::ranges::equal(part, piece.first(got))) return false;
      piece = piece.subspan(got);
      offset += got;
    }
  }
  return true;
}

}  // namespace

Status write_safetensors(const std::string& path, std::span<const TensorView> tensors,
                         const SafetensorsMetadata& metadata, bool sync) {
  const Result<std::string> header = header_for(tensors, metadata);
  if (!header) return fail(Error(header.error()).with_context(path));
  return write_file_atomically(system_env(), path, pieces_of(*header, tensors), sync);
}

Status write_safetensors(const std::string& path, std::span<const TensorView> tensors,
                         const SafetensorsMetadata& metadata, bool sync,
                         const std::function<Status(std::size_t tensor)>& ready) {
  const Result<std::string> header = header_for(tensors, metadata);
  if (!header) return fail(Error(header.error()).with_context(path));
  WaitingEnv env(system_env(), ready);
  return write_file_atomically(env, path, pieces_of(*header, tensors), sync);
}

Status write_new_safetensors(const std::string& path, std::span<const TensorView> tensors,
                             const SafetensorsMetadata& metadata, bool sync) {
  const Result<std::string> header = header_for(tensors, metadata);
  if (!header) return fail(Error(header.error()).with_context(path));
  const std::vector<Bytes> pieces = pieces_of(*header, tensors);
  const Result<bool> same = has_bytes(path, pieces);
  if (!same && same.error().code() == Code::not_found) return write_file_atomically(system_env(), path, pieces, sync);
  if (!same) return fail(Error(same.error()));
  if (*same) return {};
  return fail(Code::already_exists,
              format("{} exists with other weights, perhaps of another run; write to another folder", path));
}

}  // namespace freshet
