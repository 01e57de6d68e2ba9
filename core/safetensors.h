#pragma once

/// safetensors files: an 8-byte little-endian header length, a JSON header, the tensors' bytes. Readers trust nothing:
/// a header over the limit, offsets that overlap, leave holes or point outside, sizes that contradict shape times
/// dtype, duplicate names and unknown dtypes are each one error that names the file. Source: the format section of the
/// safetensors README.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/result.h"
#include "core/tensor.h"

namespace freshet {

inline constexpr std::uint64_t kSafetensorsHeaderBytesMax = 100'000'000;  ///< The reference reader's limit.

using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;  ///< `__metadata__`, in file order.

/// A file mapped read-only. Immutable; the views live as long as it does. Whoever replaces the file must rename another
/// one into its place, as write_safetensors does: reading a mapping whose file was cut short ends the process.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  /// In the order of their bytes in the file.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }

 private:
  SafetensorsFile() = default;
  Status read_header();

  void* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
  std::vector<TensorView> tensors_;
  SafetensorsMetadata metadata_;
};

/// Parses a header (the JSON text) against `data_bytes` of tensor bytes; offsets come back as given. Split from the
/// file so that it can be fuzzed.
struct SafetensorsHeader {
  struct Entry {
    TensorSpec spec;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  std::vector<Entry> entries;  ///< Sorted by begin; gapless from 0 to data_bytes.
  SafetensorsMetadata metadata;
};
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, std::uint64_t data_bytes);

/// Writes the file whole or not at all: into a temporary beside it, synced when `sync`, then renamed. Tensors keep
/// their order. out_of_space and io_error name the path.
Status write_safetensors(const std::string& path, std::span<const TensorView> tensors,
                         const SafetensorsMetadata& metadata, bool sync);

}  // namespace freshet
