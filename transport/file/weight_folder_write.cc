// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/digest.h"
#include "core/base/env.h"
#include "core/base/format.h"
#include "transport/file/weight_folder.h"

namespace freshet::file {
namespace {

constexpr int kZstdLevel = 1;
constexpr std::string_view kFileName = "model-00001-of-00001.safetensors";

std::string six_digits(VersionNumber number) { return format("{:06}", number); }

bool have_same_form(const std::vector<TensorView>& one, const std::vector<TensorView>& other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                    [](const TensorView& a, const TensorView& b) { return a.spec == b.spec; });
}

Result<bool> is_there(const std::string& path) {
  std::error_code error;
  const bool there = std::filesystem::exists(path, error);
  if (error) return fail_errno(error.value(), "look for " + path);
  return there;
}

/// A folder in the making; gone unless it was moved into place.
class Aside {
 public:
  static Result<Aside> make(const std::string& folder) {
    const std::string path = format("{}/.weight.{}.{:016x}", folder, ::getpid(), random_u64(system_env()));
    std::error_code error;
    std::filesystem::create_directory(path, error);
    if (error) return fail_errno(error.value(), "make folder " + path);
    return Aside(path);
  }
  Aside(Aside&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  Aside& operator=(Aside&&) = delete;
  ~Aside() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  Status move_to(const std::string& target) {
    // Not over another: rename() replaces an empty folder, and refuses one with files.
    FRESHET_ASSIGN(const bool there, is_there(target));
    if (there) return fail(Code::already_exists, target + " is there already");
    if (::rename(path_.c_str(), target.c_str()) != 0) return fail_errno(errno, "make " + target);
    path_.clear();
    return {};
  }

 private:
  explicit Aside(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

Status write_text(const std::string& path, const std::string& text, bool sync) {
  const Bytes pieces[] = {std::as_bytes(std::span(text))};
  return write_file_atomically(system_env(), path, pieces, sync);
}

/// Memory that the compressed differences live in until the file is written.
struct Differences {
  std::vector<std::vector<std::byte>> frames;
  std::vector<TensorView> tensors;
  SafetensorsMetadata checksums;
};

Result<std::vector<std::byte>> compressed_xor(Bytes base, Bytes now, std::vector<std::byte>& scratch) {
  scratch.resize(now.size());
  std::transform(now.begin(), now.end(), base.begin(), scratch.begin(), [](std::byte a, std::byte b) { return a ^ b; });
  std::vector<std::byte> frame(ZSTD_compressBound(scratch.size()));
  const std::size_t bytes = ZSTD_compress(frame.data(), frame.size(), scratch.data(), scratch.size(), kZstdLevel);
  if (ZSTD_isError(bytes) != 0) return fail(Code::out_of_space, format("compress: {}", ZSTD_getErrorName(bytes)));
  frame.resize(bytes);
  frame.shrink_to_fit();
  return frame;
}

Result<Differences> differences(const WeightFolderWriter::Version& base, const WeightFolderWriter::Version& version) {
  Differences found;
  std::vector<std::byte> scratch;
  for (std::size_t i = 0; i < version.tensors.size(); ++i) {
    const TensorView& now = version.tensors[i];
    if (std::ranges::equal(now.data, base.tensors[i].data)) continue;
    FRESHET_ASSIGN(auto frame, compressed_xor(base.tensors[i].data, now.data, scratch));
    found.checksums.emplace_back(now.spec.name, to_hex(plain_xxh3_of(now.data)));
    found.frames.push_back(std::move(frame));
    const auto& held = found.frames.back();
    found.tensors.push_back(
        {.spec = {.name = now.spec.name, .dtype = DType::u8, .shape = {held.size()}}, .data = held});
  }
  return found;
}

nlohmann::json index_of(const std::vector<TensorView>& tensors, VersionNumber number) {
  nlohmann::json map = nlohmann::json::object();
  std::uint64_t bytes = 0;
  for (const TensorView& tensor : tensors) {
    map[tensor.spec.name] = kFileName;
    bytes += tensor.data.size();
  }
  return {{"metadata", {{"total_size", bytes}, {"version", six_digits(number)}}}, {"weight_map", std::move(map)}};
}

/// Whether the folder has just that version already: it was written before a rollback to it, or before a restart.
Status check_is_same(const std::string& folder, const std::string& path, const WeightFolderWriter::Version& version) {
  FRESHET_ASSIGN(const WeightFolderReader reader, WeightFolderReader::open(folder));
  FolderWeights there;
  if (Status read = reader.read(version.number, there); !read) {
    return fail(Code::already_exists,
                format("{} is there already, and cannot be read: {}", path, read.error().message()));
  }
  std::vector<TensorView> wanted = version.tensors;
  std::ranges::sort(wanted, {}, [](const TensorView& tensor) -> const std::string& { return tensor.spec.name; });
  const std::vector<TensorView> found = there.tensors();
  const bool same = std::equal(wanted.begin(), wanted.end(), found.begin(), found.end(),
                               [](const TensorView& a, const TensorView& b) {
                                 return a.spec.name == b.spec.name && a.spec.dtype == b.spec.dtype &&
                                        a.spec.shape == b.spec.shape && std::ranges::equal(a.data, b.data);
                               });
  if (same) return {};
  return fail(Code::already_exists,
              format("{} exists with other weights, perhaps of another run; write to another folder", path));
}

}  // namespace

Result<WeightFolderWriter> WeightFolderWriter::open(const std::string& folder, Options options) {
  if (options.full_every == 0) return fail(Code::invalid_argument, "a whole version every 0 versions: give 1 or more");
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return fail_errno(error.value(), "make folder " + folder);
  return WeightFolderWriter(folder, options);
}

Result<std::string> WeightFolderWriter::write(const Version& version, const Version* base) {
  if (version.number == 0 || version.number > kFolderNumberMax) {
    return fail(Code::invalid_argument, format("a folder cannot be named after version {}", version.number));
  }
  const bool delta = base != nullptr && base->number == last_written_ && base->number + 1 == version.number &&
                     since_full_ + 1 < options_.full_every && have_same_form(base->tensors, version.tensors);
  const std::string path = format("{}/{}", folder_, folder_name_of(version.number));
  FRESHET_ASSIGN(const bool there, is_there(path));
  if (there) {
    FRESHET_TRY(check_is_same(folder_, path, version));
    FRESHET_TRY(write_text(folder_ + "/latest", folder_name_of(version.number) + "\n", options_.sync));
    since_full_ = options_.full_every;  // How many deltas lead there is not known: the next one is whole.
    last_written_ = version.number;
    return path;
  }
  FRESHET_ASSIGN(Aside aside, Aside::make(folder_));
  const std::string file = format("{}/{}", aside.path(), kFileName);
  nlohmann::json index;
  if (delta) {
    FRESHET_ASSIGN(const Differences found, differences(*base, version));
    FRESHET_TRY(write_safetensors(file, found.tensors, found.checksums, options_.sync));
    index = index_of(found.tensors, version.number);
    index["metadata"].update({{"base_version", six_digits(base->number)},
                              {"delta_encoding", "xor"},
                              {"compression_format", "zstd"},
                              {"checksum_format", "xxh3-128"}});
  } else {
    FRESHET_TRY(write_safetensors(file, version.tensors, version.metadata, options_.sync));
    index = index_of(version.tensors, version.number);
  }
  FRESHET_TRY(write_text(format("{}/{}", aside.path(), kIndexName), index.dump(2) + "\n", options_.sync));
  FRESHET_TRY(aside.move_to(path));
  if (options_.sync) FRESHET_TRY(system_env().sync_folder(folder_));
  FRESHET_TRY(write_text(folder_ + "/latest", folder_name_of(version.number) + "\n", options_.sync));
  since_full_ = delta ? since_full_ + 1 : 0;
  last_written_ = version.number;
  return path;
}

}  // namespace freshet::file
