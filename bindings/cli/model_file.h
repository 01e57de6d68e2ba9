#pragma once

/// A safetensors file in memory of our own. Files that come from outside are copied before they are used: a writer that
/// is still at work can then neither tear a version nor, by cutting the file short under a mapping, end the process.

#include <memory>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/result.h"
#include "core/safetensors.h"
#include "core/tensor.h"

namespace freshet::cli {

/// Immutable; the views live as long as it does.
class ModelFile {
 public:
  /// Errors name the path: corrupt for a file that is not what it claims; unavailable when somebody changed it
  /// meanwhile; invalid_argument for what is no regular file; out_of_space when it is larger than this machine's
  /// memory.
  static Result<ModelFile> read(const std::string& path);

  ModelFile(ModelFile&& other) noexcept;
  ModelFile& operator=(ModelFile&&) = delete;
  ~ModelFile();

  const std::vector<TensorView>& tensors() const { return tensors_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }

 private:
  ModelFile() = default;
  Status read_from(int descriptor, const std::string& path);
  Status take_header(std::string_view json, std::uint64_t data_bytes, const std::string& path);

  void* memory_ = nullptr;
  std::size_t memory_bytes_ = 0;
  std::vector<TensorView> tensors_;
  SafetensorsMetadata metadata_;
};

/// The views in the architecture's order, when both have exactly the same tensors; empty otherwise.
std::vector<TensorView> in_order_of(const Architecture& architecture, const std::vector<TensorView>& tensors);

}  // namespace freshet::cli
