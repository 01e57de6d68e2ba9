// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A model as its users name it: one safetensors file, or the index of a model that lies in several
/// ("NAME.safetensors.index.json", as Hugging Face's libraries write it beside "NAME-00001-of-00002.safetensors"). A
/// part is no model: each command that takes a model's file reads it through this class, so none takes a part for one.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "core/model/manifest.h"
#include "core/safetensors/safetensors.h"

namespace freshet {

inline constexpr std::uint64_t kSafetensorsIndexBytesMax = std::uint64_t{64} << 20;

/// A model's tensors. As SafetensorsFile otherwise.
class ModelFile {
 public:
  /// Copies in this process's memory. Of an index, all tensors that it names, file by file in the order of the files'
  /// names.
  ///
  /// Errors name the file, and are those of SafetensorsFile::read(). Besides: invalid_argument for a part of a model,
  /// and for an index of differences; not_found when a file is missing that the index names; corrupt when the index and
  /// the files contradict each other; unavailable when a part changed before the last one was read.
  static Result<ModelFile> read(const std::string& path);
  /// The files' own bytes: as SafetensorsFile::map().
  static Result<ModelFile> map(const std::string& path);
  Status check_unchanged() const;

  const std::vector<TensorView>& tensors() const { return tensors_; }
  /// What a version of the file gets as tags: its metadata, without such of Freshet's own tags as a file cannot say
  /// (core/model/own_tags.h). Of an index, what the first file that has the key says.
  const Tags& tags() const { return tags_; }
  /// The names of those that were left out, for a message; empty for none.
  const std::vector<std::string>& left_out() const { return left_out_; }
  /// The facts of the training run in the metadata. "step" is the loop's step, if it is a whole number; 0 otherwise.
  /// Each other entry that is a finite number is a metric ("loss": "0.31"). Both are tags too.
  std::uint64_t step() const { return step_; }
  const Metrics& metrics() const { return metrics_; }
  /// As SafetensorsFile::memory_of().
  MutableBytes memory_of(std::size_t tensor);

 private:
  using Open = Result<SafetensorsFile>(const std::string& path);
  static Result<ModelFile> open(const std::string& path, Open& open_one);
  explicit ModelFile(std::vector<SafetensorsFile> files);

  std::vector<SafetensorsFile> files_;
  std::vector<TensorView> tensors_;
  Tags tags_;
  std::uint64_t step_ = 0;
  Metrics metrics_;
  std::vector<std::string> left_out_;
};

/// By its name: "model.safetensors.index.json", or of a variant, "model.safetensors.index.fp16.json".
bool is_safetensors_index(std::string_view path);

/// "model" of folder/model.safetensors.index.json; the path of what lies beside it begins so. REQUIRES: an index.
std::string stem_of_safetensors_index(const std::string& path);

/// Which file has each tensor, by the index's text; files are names in the index's own folder. corrupt with the reason.
using SafetensorsWeightMap = std::vector<std::pair<std::string, std::string>>;
Result<SafetensorsWeightMap> parse_safetensors_index(std::string_view json);

/// The paths of an index's files, by name. Errors name the index.
Result<std::vector<std::string>> files_of_safetensors_index(const std::string& path);

/// Whether the name says which part of how many the file is: "NAME-00001-of-00002.safetensors".
bool has_name_of_part(std::string_view path);

/// Why a safetensors file is no model by itself, for people: its name says which part of how many it is, or an index
/// in its folder names it among others. Nothing when it is none.
std::optional<std::string> part_of_model(const std::string& path);

}  // namespace freshet
