// SPDX-License-Identifier: Apache-2.0
#include <unordered_set>

#include "core/base/env.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "core/json/canonical_json.h"
#include "core/safetensors/safetensors.h"

namespace freshet {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";

Status check_tensors(std::span<const TensorView> tensors) {
  std::unordered_set<std::string_view> names;
  for (const TensorView& tensor : tensors) {
    FRESHET_TRY(tensor.spec.check());
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

}  // namespace

Status write_safetensors(const std::string& path, std::span<const TensorView> tensors,
                         const SafetensorsMetadata& metadata, bool sync) {
  Result<std::string> header = header_for(tensors, metadata);
  if (!header) return fail(std::move(header).error().with_context(path));
  std::vector<Bytes> pieces = {std::as_bytes(std::span(*header))};
  for (const TensorView& tensor : tensors) pieces.push_back(tensor.data);
  return write_file_atomically(system_env(), path, pieces, sync);
}

}  // namespace freshet
