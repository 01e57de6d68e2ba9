// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/stream/version_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "bindings/cli/frame/durable_file.h"
#include "bindings/cli/frame/graph_file.h"
#include "core/base/env.h"
#include "core/base/format.h"
#include "core/json/json_document.h"
#include "core/safetensors/safetensors.h"
#include "core/words/number.h"

namespace freshet::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWeightsFileEnd = ".safetensors";
constexpr std::uint64_t kFileNameBytesMax = 4096;

/// What engines need: weights and buffers.
std::vector<TensorView> tensors_of(const Snapshot& snapshot) {
  std::vector<TensorView> tensors;
  const std::span<const TensorSpec> specs = snapshot.manifest().architecture->tensors();
  for (std::uint32_t tensor = 0; tensor < specs.size(); ++tensor) {
    if (is_served(specs[tensor].role)) tensors.push_back({.spec = specs[tensor], .data = snapshot.bytes(tensor)});
  }
  return tensors;
}

/// V of "MODEL@V.safetensors" as this command writes it; nothing for every other name.
std::optional<VersionNumber> number_of_file(std::string_view name, const std::string& model) {
  if (!name.starts_with(model + "@") || !name.ends_with(kWeightsFileEnd)) return std::nullopt;
  name.remove_prefix(model.size() + 1);
  name.remove_suffix(kWeightsFileEnd.size());
  if (name.starts_with('0')) return std::nullopt;
  return number_in<VersionNumber>(name);
}

/// Whether a version of a weight folder is a delta. One that cannot be read is taken for one: what it may need stays.
bool is_delta(const std::string& path) {
  const auto text = read_text_file(format("{}/{}", path, file::kIndexName), file::kIndexBytesMax);
  if (!text) return true;
  const auto index = read_json(*text);
  if (!index.is_object()) return true;
  const auto metadata = index.find("metadata");
  return metadata == index.end() || !metadata->is_object() || metadata->contains("delta_encoding");
}

/// Gives a file the time of the version's publish. Where a file system does not let us, it has the time of its writing.
void date(const std::string& path, const Snapshot& snapshot) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const std::int64_t unix_ns = std::max<std::int64_t>(0, snapshot.manifest().created_unix_ns);
  const timespec published{.tv_sec = unix_ns / kSecond, .tv_nsec = unix_ns % kSecond};
  const timespec times[] = {published, published};
  (void)::utimensat(AT_FDCWD, path.c_str(), times, 0);
}

/// A version in a folder. The greater one is the newer one; numbers decide between those of one time.
struct Dated {
  std::int64_t published_ns = 0;
  VersionNumber number = 0;
  auto operator<=>(const Dated&) const = default;
};

Dated dated(const std::string& path, VersionNumber number) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) return {.number = number};
  return {.published_ns = std::int64_t{facts.st_mtim.tv_sec} * 1'000'000'000 + facts.st_mtim.tv_nsec, .number = number};
}

}  // namespace

Result<std::string> VersionWriter::write(const std::string& model, Snapshot& snapshot) {
  Result<std::string> path = write_one(model, snapshot);
  if (path || !keep_ || path.error().code() != Code::out_of_space) return path;
  // The one to be written is one of those to keep.
  const Result<bool> removed = remove_all_but(model, *keep_ - 1);
  return removed && *removed ? write_one(model, snapshot) : path;
}

Status VersionWriter::remove_old(const std::string& model) {
  if (!keep_) return {};
  const Result<bool> removed = remove_all_but(model, *keep_);
  if (!removed) return fail(Error(removed.error()).with_context("remove versions beyond --keep"));
  return {};
}

Result<std::unique_ptr<VersionWriter>> VersionFolder::open(const std::string& folder,
                                                           std::optional<std::uint64_t> keep) {
  FRESHET_TRY(make_folder(folder));
  return std::unique_ptr<VersionWriter>(new VersionFolder(folder, keep));
}

Result<std::string> VersionFolder::write_one(const std::string& model, Snapshot& snapshot) {
  const std::string name = format("{}@{}{}", model, snapshot.version(), kWeightsFileEnd);
  const std::string path = (fs::path(folder_) / name).string();
  FRESHET_TRY(write_new_safetensors(path, tensors_of(snapshot), snapshot.manifest().tags, true));
  date(path, snapshot);
  FRESHET_TRY(point_latest_to(name));
  return path;
}

Status VersionFolder::point_latest_to(const std::string& file_name) const {
  const std::string link = folder_ + "/latest";
  const std::string aside = format("{}/.latest.{}", folder_, ::getpid());
  (void)::unlink(aside.c_str());
  if (::symlink(file_name.c_str(), aside.c_str()) != 0) {
    // FAT, some shares and object stores as folders have no links: there `latest` is a file with the name.
    if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS) return fail_errno(errno, format("link {}", aside));
    return write_text_file(link, file_name + "\n");
  }
  if (::rename(aside.c_str(), link.c_str()) != 0) {
    const int error = errno;
    (void)::unlink(aside.c_str());
    return fail_errno(error, format("link {}", link));
  }
  return system_env().sync_folder(folder_);
}

/// Empty where nothing is.
std::string VersionFolder::name_of_latest() const {
  const std::string path = folder_ + "/latest";
  std::error_code error;
  const fs::path target = fs::read_symlink(path, error);
  if (!error) return target.filename().string();
  const auto text = read_text_file(path, kFileNameBytesMax);
  return text ? text->substr(0, text->find('\n')) : std::string();
}

Result<bool> VersionFolder::remove_all_but(const std::string& model, std::uint64_t count) {
  std::vector<std::pair<Dated, std::string>> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (const auto number = number_of_file(name, model)) {
      files.emplace_back(dated(entry->path().string(), *number), name);
    }
  }
  if (error) return fail_errno(error.value(), format("read folder {}", folder_));
  std::ranges::sort(files, std::greater());
  const std::string latest = name_of_latest();
  bool removed = false;
  for (std::size_t i = count; i < files.size(); ++i) {
    if (files[i].second == latest) continue;
    const Status gone = system_env().remove_file(folder_ + "/" + files[i].second);
    // Somebody else may tidy up too.
    if (!gone && gone.error().code() != Code::not_found) return fail(gone.error());
    removed = true;
  }
  return removed;
}

Result<std::unique_ptr<VersionWriter>> WeightVersionFolder::open(const std::string& folder, std::size_t full_every,
                                                                 std::optional<std::uint64_t> keep) {
  FRESHET_TRY(make_folder(folder));
  FRESHET_ASSIGN(auto writer, file::WeightFolderWriter::open(folder, {.full_every = full_every, .sync = true}));
  return std::unique_ptr<VersionWriter>(new WeightVersionFolder(folder, std::move(writer), keep));
}

Result<std::string> WeightVersionFolder::write_one(const std::string&, Snapshot& snapshot) {
  using Version = file::WeightFolderWriter::Version;
  const auto version_of = [](const Snapshot& of) {
    return Version{.number = of.version(), .tensors = tensors_of(of), .metadata = of.manifest().tags};
  };
  std::optional<Version> base;
  if (before_) base = version_of(before_);
  FRESHET_ASSIGN(std::string path, writer_.write(version_of(snapshot), base ? &*base : nullptr));
  date(format("{}/{}", path, file::kIndexName), snapshot);
  before_ = std::move(snapshot);
  return path;
}

Result<bool> WeightVersionFolder::remove_all_but(const std::string&, std::uint64_t count) {
  FRESHET_ASSIGN(const auto reader, file::WeightFolderReader::open(folder_));
  FRESHET_ASSIGN(std::vector<VersionNumber> numbers, reader.versions());
  const auto path_of = [this](VersionNumber number) { return format("{}/{}", folder_, file::folder_name_of(number)); };
  if (numbers.size() <= count) return false;
  std::vector<Dated> versions;
  for (const VersionNumber number : numbers) {
    versions.push_back(dated(format("{}/{}", path_of(number), file::kIndexName), number));
  }
  std::ranges::sort(versions, std::greater());
  std::set<VersionNumber> kept;
  FRESHET_ASSIGN(const VersionNumber latest, reader.latest());
  const auto keep = [&](VersionNumber number) {
    // And what it builds on.
    while (number > 0 && kept.insert(number).second && is_delta(path_of(number))) --number;
  };
  keep(latest);
  for (const Dated& version : std::span(versions).first(count)) keep(version.number);
  // From the highest number on, so that what is left at any time can be read.
  std::ranges::sort(numbers, std::greater());
  bool removed = false;
  for (const VersionNumber number : numbers) {
    if (kept.contains(number)) continue;
    const std::string aside = format("{}/.removed.{}", folder_, ::getpid());
    std::error_code error;
    fs::remove_all(aside, error);  // Left by a removal that failed.
    if (::rename(path_of(number).c_str(), aside.c_str()) != 0) return fail_errno(errno, path_of(number));
    fs::remove_all(aside, error);
    if (error) return fail_errno(error.value(), format("remove {}", aside));
    removed = true;
  }
  return removed;
}

}  // namespace freshet::cli
