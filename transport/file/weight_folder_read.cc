// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <map>
#include <new>
#include <numeric>
#include <set>

#include "core/base/file_io.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "core/json/json_document.h"
#include "transport/file/weight_delta.h"
#include "transport/file/weight_files.h"
#include "transport/file/weight_folder.h"

namespace freshet::file {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "weight_v";
constexpr std::size_t kDigitsMin = 6;
constexpr std::uint64_t kPointerBytesMax = 4096;

/// What an index's metadata says.
struct IndexHead {
  std::set<std::string> files;  ///< That hold the tensors.
  bool is_delta = false;
  VersionNumber base = 0;
  std::string encoding;
  std::string compression;
  std::string checksum;
};

/// What is no regular file is not there. What cannot be read now may be readable later: a server of files may be away.
Result<std::string> read_small(const fs::path& path, std::uint64_t bytes_max) {
  Result<FileText> read = read_file(path.string(), bytes_max, Code::corrupt);
  if (read) return std::move(read->text);
  const Code code = read.error().code();
  if (code == Code::invalid_argument) return fail(Code::not_found, read.error().message());
  return fail(code == Code::io_error ? Code::unavailable : code, read.error().message());
}

/// Digits in a string, or a number.
Result<VersionNumber> number_in(const JsonDocument& metadata, const char* key) {
  const auto at = metadata.find(key);
  if (at == metadata.end()) return fail(Code::corrupt, format("the index has no {}", key));
  if (at->is_number_unsigned() && at->get<std::uint64_t>() <= kFolderNumberMax) return at->get<std::uint64_t>();
  if (at->is_string()) {
    const std::string name = std::string(kPrefix) + at->get<std::string>();
    if (auto number = number_of_folder(name)) return number;
    if (at->get<std::string>().find_first_not_of('0') == std::string::npos) return VersionNumber{0};
  }
  return fail(Code::corrupt, format("the index's {} is not a version number", key));
}

Result<std::string> text_in(const JsonDocument& metadata, const char* key) {
  const auto at = metadata.find(key);
  if (at == metadata.end() || !at->is_string()) return fail(Code::corrupt, format("the index has no {}", key));
  return at->get<std::string>();
}

Result<std::set<std::string>> files_in(const JsonDocument& index) {
  std::set<std::string> files;
  const auto map = index.find("weight_map");
  if (map == index.end()) return files;
  if (!map->is_object()) return fail(Code::corrupt, "the index's weight_map is not an object");
  for (const auto& [tensor, file] : map->get_ref<const JsonDocument::object_t&>()) {
    if (!file.is_string()) return fail(Code::corrupt, format("the index has no file for {}", shown(tensor)));
    const auto& name = file.get_ref<const std::string&>();
    if (name.find('/') != std::string::npos) {
      return fail(Code::corrupt, format("the index's file {} is outside of the version's folder", shown(name)));
    }
    files.insert(name);
  }
  return files;
}

/// An ordinary checkpoint may have no index, or one without metadata.
Result<IndexHead> read_index(const fs::path& version) {
  auto text = read_small(version / kIndexName, kIndexBytesMax);
  if (!text && text.error().code() == Code::not_found) return IndexHead{};
  if (!text) return fail(std::move(text).error());
  auto document = parse_json(*text);
  if (!document) return fail(Code::corrupt, document.error().message());
  if (!document->is_object()) return fail(Code::corrupt, "the index is not an object");
  IndexHead head;
  FRESHET_ASSIGN(head.files, files_in(*document));
  const auto metadata = document->find("metadata");
  if (metadata == document->end() || !metadata->is_object() || !metadata->contains("delta_encoding")) return head;
  head.is_delta = true;
  FRESHET_ASSIGN(head.base, number_in(*metadata, "base_version"));
  FRESHET_ASSIGN(head.encoding, text_in(*metadata, "delta_encoding"));
  FRESHET_ASSIGN(head.compression, text_in(*metadata, "compression_format"));
  FRESHET_ASSIGN(head.checksum, text_in(*metadata, "checksum_format"));
  return head;
}

}  // namespace

std::string folder_name_of(VersionNumber number) { return format("{}{:06}", kPrefix, number); }

Result<VersionNumber> number_of_folder(std::string_view name) {
  const auto refuse = [&] { return fail(Code::not_found, format("{} names no version", shown(name))); };
  if (!name.starts_with(kPrefix)) return refuse();
  const std::string_view digits = name.substr(kPrefix.size());
  const bool all_digits = std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
  if (digits.empty() || digits.size() > 9 || !all_digits) return refuse();
  // One name for each number, so that two folders cannot be the same version.
  if (digits.size() < kDigitsMin || (digits.size() > kDigitsMin && digits[0] == '0')) return refuse();
  const VersionNumber number = std::accumulate(digits.begin(), digits.end(), VersionNumber{0}, [](auto sum, char c) {
    return sum * 10 + static_cast<VersionNumber>(c - '0');
  });
  if (number == 0) return refuse();
  return number;
}

std::vector<TensorView> FolderWeights::tensors() const {
  std::vector<TensorView> views;
  views.reserve(slots_.size());
  for (const Slot& slot : slots_) views.push_back({.spec = slot.spec, .data = slot.memory});
  return views;
}

Result<WeightFolderReader> WeightFolderReader::open(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return fail(Code::not_found, folder + ": the folder does not exist");
  return WeightFolderReader(folder);
}

Result<VersionNumber> WeightFolderReader::latest() const {
  if (const auto pointer = read_small(folder_ + "/latest", kPointerBytesMax)) {
    std::string_view name = *pointer;
    while (!name.empty() && (name.back() == '\n' || name.back() == '\r' || name.back() == ' ')) name.remove_suffix(1);
    if (const auto slash = name.rfind('/'); slash != std::string_view::npos) name.remove_prefix(slash + 1);
    const auto number = number_of_folder(name);
    std::error_code ignored;
    // One that points to nothing (not visible yet here) is passed over.
    if (number && fs::is_directory(folder_ + "/" + folder_name_of(*number), ignored)) return number;
  }
  FRESHET_ASSIGN(const std::vector<VersionNumber> all, versions());
  if (all.empty()) return fail(Code::not_found, folder_ + " holds no versions yet");
  return all.back();
}

Result<std::vector<VersionNumber>> WeightFolderReader::versions() const {
  std::vector<VersionNumber> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
    if (const auto number = number_of_folder(entry->path().filename().string())) found.push_back(*number);
  }
  if (error) return fail_errno(error.value(), folder_);
  std::sort(found.begin(), found.end());
  return found;
}

Status WeightFolderReader::read(VersionNumber number, FolderWeights& weights) const {
  try {
    return read_chain(number, weights);
  } catch (const std::bad_alloc&) {
    return fail(Code::out_of_space, format("{}: no memory to read it", folder_name_of(number)));
  }
}

std::string WeightFolderReader::look_of(VersionNumber number) const {
  return WeightFiles::look_of(folder_ + "/" + folder_name_of(number));
}

Status WeightFolderReader::read_chain(VersionNumber number, FolderWeights& weights) const {
  const auto path_of = [&](VersionNumber version) { return fs::path(folder_) / folder_name_of(version); };
  // Back from the target, over deltas, to what `weights` has or to a whole version.
  std::vector<std::pair<VersionNumber, IndexHead>> chain;
  VersionNumber at = number;
  std::error_code ignored;
  while (at != weights.number_ || at == 0) {
    if (at == 0 || !fs::is_directory(path_of(at), ignored)) {
      return fail(Code::not_found, format("{}: {} is not there", folder_, folder_name_of(at)));
    }
    auto head = read_index(path_of(at));
    if (!head) return fail(std::move(head).error().with_context(path_of(at).string()));
    if (Status whole = WeightFiles::check_whole(path_of(at), head->files); !whole) return whole;
    chain.emplace_back(at, *head);
    if (!head->is_delta) break;
    if (head->base >= at || chain.size() > kChainMax) {
      return fail(Code::corrupt, format("{}: its deltas reach back to no whole version", path_of(number).string()));
    }
    at = head->base;
  }
  std::vector<bool> changed(weights.slots_.size(), false);
  weights.number_ = 0;  // Until it is whole again.
  while (!chain.empty()) {
    const auto [version, head] = std::move(chain.back());
    chain.pop_back();
    Status status = head.is_delta
                        ? apply(path_of(version), head.encoding, head.compression, head.checksum, weights, changed)
                        : load(path_of(version), weights, changed);
    if (!status) return fail(std::move(status).error().with_context(path_of(version).string()));
  }
  weights.changed_.clear();
  for (std::uint32_t i = 0; i < changed.size(); ++i) {
    if (changed[i]) weights.changed_.push_back(i);
  }
  weights.number_ = number;
  return {};
}

Status WeightFolderReader::load(const std::string& path, FolderWeights& weights, std::vector<bool>& changed) {
  weights.slots_.clear();
  weights.files_.clear();
  FRESHET_ASSIGN(auto files, WeightFiles::read(path));
  std::map<std::string_view, FolderWeights::Slot> tensors;
  for (SafetensorsFile& file : files) {
    if (WeightFiles::looks_like_a_delta(file)) {
      return fail(Code::unavailable, "it is a delta, and its index is not there yet");
    }
    for (std::size_t i = 0; i < file.tensors().size(); ++i) {
      const TensorSpec& spec = file.tensors()[i].spec;
      const bool is_new = tensors.try_emplace(spec.name, FolderWeights::Slot{spec, file.memory_of(i)}).second;
      if (!is_new) return fail(Code::corrupt, format("two tensors are named {}", shown(spec.name)));
    }
  }
  for (auto& [name, slot] : tensors) weights.slots_.push_back(std::move(slot));
  weights.files_ = std::move(files);
  changed.assign(weights.slots_.size(), true);
  return {};
}

Status WeightFolderReader::apply(const std::string& path, const std::string& encoding, const std::string& compression,
                                 const std::string& checksum, FolderWeights& weights, std::vector<bool>& changed) {
  FRESHET_ASSIGN(const WeightDelta delta, WeightDelta::of(encoding, compression, checksum));
  FRESHET_ASSIGN(const auto files, WeightFiles::read(path));
  for (const SafetensorsFile& file : files) {
    const std::map<std::string, std::string> checksums(file.metadata().begin(), file.metadata().end());
    for (const TensorView& frame : file.tensors()) {
      const auto slot = std::ranges::lower_bound(weights.slots_, frame.spec.name, {},
                                                 [](const auto& s) -> const std::string& { return s.spec.name; });
      if (slot == weights.slots_.end() || slot->spec.name != frame.spec.name) {
        return fail(Code::corrupt, format("a delta changes {}, which the base does not have", shown(frame.spec.name)));
      }
      const auto expected = checksums.find(frame.spec.name);
      if (expected == checksums.end()) return fail(Code::corrupt, format("{} has no checksum", shown(frame.spec.name)));
      Status applied = delta.apply(frame.data, expected->second, slot->memory);
      if (!applied) return fail(std::move(applied).error().with_context(shown(frame.spec.name)));
      changed[static_cast<std::size_t>(slot - weights.slots_.begin())] = true;
    }
  }
  return {};
}

}  // namespace freshet::file
