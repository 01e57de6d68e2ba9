// SPDX-License-Identifier: Apache-2.0
#pragma once

/// safetensors files: an 8-byte little-endian header length, a JSON header, the tensors' bytes. Readers trust nothing:
/// a header over the limit, offsets that overlap, leave holes or point outside, sizes that contradict shape times
/// dtype and duplicate names are each one error that names the file. corrupt: no reader may take the file. unsupported:
/// it may be good, and has a dtype, name, rank or key that Freshet cannot carry. Source: the format section of the
/// safetensors README; the dtypes are those of its crate 0.8. The elements of F4 and F6 lie one behind the other, and
/// fill whole bytes together.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/file_io.h"
#include "core/base/result.h"
#include "core/host/mapped_file.h"
#include "core/model/tensor.h"

namespace freshet {

inline constexpr std::uint64_t kSafetensorsHeaderBytesMax = 100'000'000;  ///< The reference reader's limit.

using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;  ///< `__metadata__`, in file order.

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
/// The number of tensor bytes that a header promises.
Result<std::uint64_t> data_bytes_of_safetensors_header(std::string_view json);

/// A file's tensors. The views live as long as this object. One thread at a time; any thread while nobody writes
/// through memory_of().
class SafetensorsFile {
 public:
  /// A copy in this process's memory: a writer at work cannot tear it.
  ///
  /// Errors name the path. corrupt: the file contradicts its header. unsupported: as above. unavailable: somebody
  /// changed the file meanwhile. invalid_argument: it is no regular file. out_of_space: there is no memory for it.
  static Result<SafetensorsFile> read(const std::string& path);
  /// The file's own bytes, in no memory of this process (core/host/mapped_file.h). For a caller who proves all bytes
  /// that it uses by digests, and asks check_unchanged() after it took the digests, and after a failure. The views are
  /// aligned as the file is. A file that cannot be mapped is read(). Errors as read().
  static Result<SafetensorsFile> map(const std::string& path);
  /// As MappedFile::check_unchanged(); a copy never changes.
  Status check_unchanged() const;

  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  /// In the order of their bytes in the file.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }
  /// The view's bytes, writable, for a caller that makes another version from them. REQUIRES: an index of tensors(), of
  /// a copy.
  MutableBytes memory_of(std::size_t tensor);

 private:
  SafetensorsFile() = default;
  Status copy_from(const OpenedFile& file);
  Status take_memory(std::uint64_t bytes);
  /// The views of `data`, where the header's entries say.
  void take_views(SafetensorsHeader header, Bytes data);

  std::unique_ptr<MappedFile> mapped_;
  void* memory_ = nullptr;
  std::size_t memory_bytes_ = 0;
  std::vector<TensorView> tensors_;
  SafetensorsMetadata metadata_;
};

/// Checks that a file has as many bytes as its header promises, without reading them. unavailable: there are fewer
/// bytes; a writer is still at work, or stopped. corrupt: there are more bytes, or the file does not begin with a
/// safetensors header.
Status check_is_whole_safetensors(const std::string& path);

/// Writes the file whole or not at all: into a temporary beside it, synced when `sync`, then renamed. Tensors keep
/// their order. out_of_space and io_error name the path.
Status write_safetensors(const std::string& path, std::span<const TensorView> tensors,
                         const SafetensorsMetadata& metadata, bool sync);

/// The same for a file whose name is an identity, such as a version's in an archive: what is there stays. Nothing
/// happens if the file has just these bytes already; already_exists if it has others.
Status write_new_safetensors(const std::string& path, std::span<const TensorView> tensors,
                             const SafetensorsMetadata& metadata, bool sync);

}  // namespace freshet
