#include "bindings/cli/version_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <vector>

#include "core/format.h"
#include "core/safetensors.h"

namespace freshet::cli {

namespace {

std::vector<TensorView> tensors_of(const Snapshot& snapshot) {
  std::vector<TensorView> tensors;
  for (const TensorSpec& spec : snapshot.manifest().architecture->tensors()) {
    tensors.push_back({.spec = spec, .data = snapshot.bytes(static_cast<std::uint32_t>(tensors.size()))});
  }
  return tensors;
}

}  // namespace

Result<std::unique_ptr<VersionWriter>> VersionFolder::open(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return fail_errno(error.value(), format("make folder {}", folder));
  return std::unique_ptr<VersionWriter>(new VersionFolder(folder));
}

Result<std::string> VersionFolder::write(const std::string& model, Snapshot& snapshot) {
  const std::string name = format("{}@{}.safetensors", model, snapshot.version());
  const std::string path = (std::filesystem::path(folder_) / name).string();
  FRESHET_TRY(write_safetensors(path, tensors_of(snapshot), snapshot.manifest().tags, false));
  FRESHET_TRY(point_latest_to(name));
  return path;
}

Status VersionFolder::point_latest_to(const std::string& file_name) const {
  const std::string link = folder_ + "/latest";
  const std::string aside = format("{}/.latest.{}", folder_, ::getpid());
  (void)::unlink(aside.c_str());
  if (::symlink(file_name.c_str(), aside.c_str()) != 0) return fail_errno(errno, format("link {}", aside));
  if (::rename(aside.c_str(), link.c_str()) != 0) {
    const int error = errno;
    (void)::unlink(aside.c_str());
    return fail_errno(error, format("link {}", link));
  }
  return {};
}

Result<std::unique_ptr<VersionWriter>> WeightVersionFolder::open(const std::string& folder, std::size_t full_every) {
  FRESHET_ASSIGN(auto writer, file::WeightFolderWriter::open(folder, {.full_every = full_every}));
  return std::unique_ptr<VersionWriter>(new WeightVersionFolder(std::move(writer)));
}

Result<std::string> WeightVersionFolder::write(const std::string&, Snapshot& snapshot) {
  using Version = file::WeightFolderWriter::Version;
  const auto version_of = [](const Snapshot& of) {
    return Version{.number = of.version(), .tensors = tensors_of(of), .metadata = of.manifest().tags};
  };
  std::optional<Version> base;
  if (before_) base = version_of(before_);
  FRESHET_ASSIGN(std::string path, writer_.write(version_of(snapshot), base ? &*base : nullptr));
  before_ = std::move(snapshot);
  return path;
}

}  // namespace freshet::cli
