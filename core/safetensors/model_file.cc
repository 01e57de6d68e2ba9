// SPDX-License-Identifier: Apache-2.0
#include "core/safetensors/model_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <unordered_map>

#include "core/base/check.h"
#include "core/base/file_io.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "core/json/json_document.h"
#include "core/model/own_tags.h"
#include "core/words/number.h"

namespace freshet {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexMark = ".safetensors.index.";
constexpr std::string_view kModelFileEnd = ".safetensors";
constexpr std::string_view kStepKey = "step";

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// The text after the last `mark`, which is taken off `stem` with it. Nothing without the mark.
std::optional<std::string_view> take_after(std::string_view& stem, std::string_view mark) {
  const std::size_t at = stem.rfind(mark);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view after = stem.substr(at + mark.size());
  stem = stem.substr(0, at);
  return after;
}

Result<SafetensorsWeightMap> read_index(const std::string& path) {
  FRESHET_ASSIGN(const FileText file, read_file(path, kSafetensorsIndexBytesMax, Code::corrupt));
  auto map = parse_safetensors_index(file.text);
  if (!map) return fail(std::move(map).error().with_context(path));
  return map;
}

std::set<std::string> names_in(const SafetensorsWeightMap& map) {
  std::set<std::string> names;
  for (const auto& [tensor, file] : map) names.insert(file);
  return names;
}

std::string beside(const std::string& path, const std::string& name) {
  return (fs::path(path).parent_path() / name).string();
}

/// What tells one state of some files from another without reading them.
std::string look_of_parts(const std::vector<std::string>& paths) {
  std::string look;
  for (const std::string& path : paths) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) status.st_size = -1;
    look += format("{} {} {}.{:09}\n", status.st_ino, status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  }
  return look;
}

/// Each tensor of the index is in its file, and no file has another.
Status check_parts(const SafetensorsWeightMap& map, const std::vector<std::string>& paths,
                   const std::vector<SafetensorsFile>& files) {
  std::unordered_map<std::string_view, std::string_view> promised;
  for (const auto& [tensor, file] : map) promised.emplace(tensor, file);
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string name = fs::path(paths[i]).filename().string();
    for (const TensorView& view : files[i].tensors()) {
      const auto found = promised.find(view.spec.name);
      if (found == promised.end() || found->second != name) {
        return fail(Code::corrupt, format("{} has a tensor {}, which the index does not name there", shown(name),
                                          shown(view.spec.name)));
      }
      promised.erase(found);
    }
  }
  if (promised.empty()) return {};
  const auto& [tensor, file] = *promised.begin();
  return fail(Code::corrupt, format("{} has no tensor {}, which the index names there", shown(file), shown(tensor)));
}

Result<std::vector<SafetensorsFile>> open_parts(const std::string& index,
                                                Result<SafetensorsFile> (&open_one)(const std::string& path)) {
  FRESHET_ASSIGN(const SafetensorsWeightMap map, read_index(index));
  std::vector<std::string> paths;
  for (const std::string& name : names_in(map)) paths.push_back(beside(index, name));
  const std::string before = look_of_parts(paths);
  std::vector<SafetensorsFile> files;
  for (const std::string& path : paths) {
    auto file = open_one(path);
    if (!file) return fail(std::move(file).error().with_context(format("{} names it", index)));
    files.push_back(std::move(*file));
  }
  if (look_of_parts(paths) != before) {
    return fail(Code::unavailable, format("{}: its files changed while they were read", index));
  }
  if (Status whole = check_parts(map, paths, files); !whole) return fail(std::move(whole).error().with_context(index));
  return files;
}

/// An index in the file's folder that names it, and others. What cannot be read names nothing.
std::optional<std::string> index_that_names(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  const fs::path folder = fs::path(path).parent_path();
  std::error_code error;
  for (fs::directory_iterator at(folder.empty() ? fs::path(".") : folder, error), end; !error && at != end;
       at.increment(error)) {
    const std::string index = at->path().filename().string();
    if (!is_safetensors_index(index)) continue;
    const auto map = read_index(at->path().string());
    if (!map) continue;
    const std::set<std::string> names = names_in(*map);
    if (names.size() > 1 && names.contains(name)) return index;
  }
  return std::nullopt;
}

}  // namespace

bool is_safetensors_index(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return name.ends_with(".json") && name.find(kIndexMark) != std::string_view::npos;
}

std::string stem_of_safetensors_index(const std::string& path) { return path.substr(0, path.rfind(kIndexMark)); }

Result<SafetensorsWeightMap> parse_safetensors_index(std::string_view json) {
  const auto damaged = [](std::string reason) { return fail(Code::corrupt, std::move(reason)); };
  const auto document = parse_json(json);
  if (!document) return damaged(document.error().message());
  if (!document->is_object()) return damaged("the index is not an object");
  const auto metadata = document->find("metadata");
  if (metadata != document->end() && metadata->is_object() && metadata->contains("delta_encoding")) {
    return fail(
        Code::invalid_argument,
        "the index lists differences from another version, not a whole model; `freshet publish --follow` takes them");
  }
  const auto map = document->find("weight_map");
  if (map == document->end() || !map->is_object()) return damaged("the index has no weight_map");
  SafetensorsWeightMap answer;
  for (const auto& [tensor, file] : map->get_ref<const JsonDocument::object_t&>()) {
    if (!file.is_string()) return damaged(format("the index has no file for {}", shown(tensor)));
    const auto& name = file.get_ref<const std::string&>();
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos || has_controls(name)) {
      return damaged(format("the index's file {} is no name in its own folder", shown(name)));
    }
    answer.emplace_back(tensor, name);
  }
  if (answer.empty()) return damaged("the index names no tensor");
  return answer;
}

Result<std::vector<std::string>> files_of_safetensors_index(const std::string& path) {
  FRESHET_ASSIGN(const SafetensorsWeightMap map, read_index(path));
  std::vector<std::string> paths;
  for (const std::string& name : names_in(map)) paths.push_back(beside(path, name));
  return paths;
}

bool has_name_of_part(std::string_view path) {
  if (!path.ends_with(kModelFileEnd)) return false;
  std::string_view stem = path.substr(path.rfind('/') + 1);
  stem.remove_suffix(kModelFileEnd.size());
  // Of Hugging Face's libraries; "00001-of-00001" is whole.
  std::string_view rest = stem;
  if (const auto count = take_after(rest, "-of-"); count && all_digits(*count)) {
    const auto number = take_after(rest, "-");
    const std::size_t nonzero = count->find_first_not_of('0');
    const bool several = nonzero != std::string_view::npos && count->substr(nonzero) != "1";
    if (number && all_digits(*number) && several) return true;
  }
  // What each process of a server saved of its own.
  rest = stem;
  const auto part = take_after(rest, "-part-");
  const auto rank = take_after(rest, "-rank-");
  return part && rank && all_digits(*part) && all_digits(*rank);
}

std::optional<std::string> part_of_model(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  // A link may have another name than the part that it leads to.
  for (const std::string& place : {path, fs::canonical(path, error).string()}) {
    if (!place.ends_with(kModelFileEnd)) continue;
    if (const auto index = index_that_names(place)) {
      return format("the file is a part of a checkpoint; {} names all its parts, and stands for the model",
                    beside(place, *index));
    }
    if (has_name_of_part(place)) {
      return "the file is a part of a checkpoint, and no index (*.safetensors.index.json) beside it names the others; "
             "bring the index, or join the parts into one file";
    }
  }
  return std::nullopt;
}

ModelFile::ModelFile(std::vector<SafetensorsFile> files) : files_(std::move(files)) {
  std::set<std::string_view> known;
  for (const SafetensorsFile& file : files_) {
    tensors_.insert(tensors_.end(), file.tensors().begin(), file.tensors().end());
    for (const auto& [key, value] : file.metadata()) {
      if (known.insert(key).second) tags_.emplace_back(key, value);
    }
  }
  left_out_ = drop_own_tags_of_file(tags_, tensors_);
  for (const auto& [key, value] : tags_) {
    if (key == kStepKey) {
      step_ = number_in<std::uint64_t>(value).value_or(0);
    } else if (const auto number = number_in<double>(value); number && std::isfinite(*number)) {
      metrics_.emplace_back(key, *number);
    }
  }
}

Result<ModelFile> ModelFile::read(const std::string& path) { return open(path, SafetensorsFile::read); }
Result<ModelFile> ModelFile::map(const std::string& path) { return open(path, SafetensorsFile::map); }

Result<ModelFile> ModelFile::open(const std::string& path, Open& open_one) {
  if (is_safetensors_index(path)) {
    FRESHET_ASSIGN(std::vector<SafetensorsFile> files, open_parts(path, open_one));
    return ModelFile(std::move(files));
  }
  if (const auto part = part_of_model(path)) return fail(Code::invalid_argument, format("{}: {}", path, *part));
  FRESHET_ASSIGN(SafetensorsFile file, open_one(path));
  std::vector<SafetensorsFile> files;
  files.push_back(std::move(file));
  return ModelFile(std::move(files));
}

Status ModelFile::check_unchanged() const {
  for (const SafetensorsFile& file : files_) FRESHET_TRY(file.check_unchanged());
  return {};
}

MutableBytes ModelFile::memory_of(std::size_t tensor) {
  FRESHET_CHECK(tensor < tensors_.size());
  auto file = files_.begin();
  for (; tensor >= file->tensors().size(); ++file) tensor -= file->tensors().size();
  return file->memory_of(tensor);
}

}  // namespace freshet
