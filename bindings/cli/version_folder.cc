#include "bindings/cli/version_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "core/format.h"
#include "core/safetensors.h"

namespace freshet::cli {

Result<VersionFolder> VersionFolder::open(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return fail_errno(error.value(), format("make folder {}", folder));
  return VersionFolder(folder);
}

Result<std::string> VersionFolder::write(const std::string& model, const Snapshot& snapshot) const {
  const Manifest& manifest = snapshot.manifest();
  std::vector<TensorView> tensors;
  tensors.reserve(manifest.architecture->tensors().size());
  for (const TensorSpec& spec : manifest.architecture->tensors()) {
    tensors.push_back({.spec = spec, .data = snapshot.bytes(static_cast<std::uint32_t>(tensors.size()))});
  }
  const std::string name = format("{}@{}.safetensors", model, snapshot.version());
  const std::string path = (std::filesystem::path(folder_) / name).string();
  FRESHET_TRY(write_safetensors(path, tensors, manifest.tags, false));
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

}  // namespace freshet::cli
