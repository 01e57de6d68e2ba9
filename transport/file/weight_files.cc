// SPDX-License-Identifier: Apache-2.0
#include "transport/file/weight_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>

#include "core/base/format.h"
#include "core/base/text.h"
#include "transport/file/weight_folder.h"

namespace freshet::file {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kFileEnd = ".safetensors";
constexpr std::size_t kChecksumDigits = 32;

Result<std::vector<fs::path>> files_of(const std::string& version) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(version, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->path().extension() == kFileEnd && entry->is_regular_file(ignored)) files.push_back(entry->path());
  }
  if (error) return fail_errno(error.value(), version);
  std::sort(files.begin(), files.end());
  return files;
}

/// Takes digits from the end of `text`.
std::optional<std::uint32_t> take_number(std::string_view& text) {
  std::size_t begin = text.size();
  while (begin > 0 && text[begin - 1] >= '0' && text[begin - 1] <= '9') --begin;
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), number);
  if (error != std::errc() || begin == text.size()) return std::nullopt;
  text = text.substr(0, begin);
  return number;
}

/// Of "model-00002-of-00004.safetensors": which of how many, of what.
struct Part {
  std::string whole;  ///< "model", and how many: parts of two sets do not make one.
  std::uint32_t number = 0;
  std::uint32_t count = 0;
};
std::optional<Part> part_named(std::string_view name) {
  if (!name.ends_with(kFileEnd)) return std::nullopt;
  name.remove_suffix(kFileEnd.size());
  Part part;
  const auto count = take_number(name);
  if (!count || !name.ends_with("-of-")) return std::nullopt;
  name.remove_suffix(std::string_view("-of-").size());
  const auto number = take_number(name);
  if (!number || *number == 0 || *number > *count || !name.ends_with('-')) return std::nullopt;
  return Part{.whole = format("{}{}", name, *count), .number = *number, .count = *count};
}

Status check_promises(const std::vector<fs::path>& files, const std::set<std::string>& named) {
  std::set<std::string> there;
  std::map<std::string, std::pair<std::uint32_t, std::set<std::uint32_t>>> sets;
  for (const fs::path& file : files) {
    there.insert(file.filename().string());
    const auto part = part_named(file.filename().string());
    if (!part) continue;
    auto& [count, numbers] = sets[part->whole];
    count = part->count;
    numbers.insert(part->number);
  }
  for (const std::string& name : named) {
    if (!there.contains(name)) {
      return fail(Code::unavailable, format("{}, which the index names, is not there yet", shown(name)));
    }
  }
  for (const auto& [whole, set] : sets) {
    const auto& [count, numbers] = set;
    if (numbers.size() == count) continue;
    return fail(Code::unavailable, format("{} of {} files are there yet", numbers.size(), count));
  }
  return {};
}

std::string look_of_files(const std::vector<fs::path>& files) {
  std::string look;
  for (const fs::path& file : files) {
    struct stat status {};
    if (::stat(file.c_str(), &status) != 0) status.st_size = -1;
    look += format("{} {} {} {}.{:09} {}.{:09}\n", file.filename().string(), status.st_ino, status.st_size,
                   status.st_mtim.tv_sec, status.st_mtim.tv_nsec, status.st_ctim.tv_sec, status.st_ctim.tv_nsec);
  }
  return look;
}

}  // namespace

Result<std::vector<SafetensorsFile>> WeightFiles::read(const std::string& version) {
  FRESHET_ASSIGN(const auto paths, files_of(version));
  if (paths.empty()) return fail(Code::not_found, version + " holds no safetensors files");
  const std::string before = look_of(version);
  std::vector<SafetensorsFile> files;
  for (const fs::path& path : paths) {
    FRESHET_ASSIGN(SafetensorsFile file, SafetensorsFile::read(path.string()));
    files.push_back(std::move(file));
  }
  if (look_of(version) == before) return files;
  return fail(Code::unavailable, "its files changed while they were read");
}

Status WeightFiles::check_whole(const std::string& version, const std::set<std::string>& named) {
  FRESHET_ASSIGN(const auto files, files_of(version));
  if (files.empty()) return fail(Code::unavailable, version + " holds no safetensors files yet");
  if (Status kept = check_promises(files, named); !kept) return fail(std::move(kept).error().with_context(version));
  for (const fs::path& file : files) FRESHET_TRY(check_is_whole_safetensors(file.string()));
  return {};
}

std::string WeightFiles::look_of(const std::string& version) {
  auto files = files_of(version);
  if (!files) return {};
  files->push_back(fs::path(version) / kIndexName);
  return look_of_files(*files);
}

bool WeightFiles::looks_like_a_delta(const SafetensorsFile& file) {
  const auto is_checksum = [](const std::string& text) {
    return text.size() == kChecksumDigits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
  };
  const std::map<std::string_view, std::string_view> metadata(file.metadata().begin(), file.metadata().end());
  return !file.tensors().empty() && std::ranges::all_of(file.tensors(), [&](const TensorView& tensor) {
    const auto checksum = metadata.find(tensor.spec.name);
    return tensor.spec.dtype == DType::u8 && checksum != metadata.end() && is_checksum(std::string(checksum->second));
  });
}

}  // namespace freshet::file
