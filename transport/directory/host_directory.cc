// SPDX-License-Identifier: Apache-2.0
#include "transport/directory/host_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "core/base/format.h"
#include "transport/directory/entry_json.h"
#include "transport/directory/host_claim.h"
#include "transport/directory/host_files.h"
#include "transport/directory/host_watch.h"

namespace freshet {
namespace {

constexpr std::size_t kFilesMax = 16 * 1024;
constexpr std::size_t kServersMax = 1024;

struct DefaultFolder {
  std::string path;
  std::string_view named_by;  ///< A variable; empty for none.
};

DefaultFolder default_folder() {
  if (const char* run = std::getenv("FRESHET_RUN_DIR"); run != nullptr && *run != '\0') return {run, "FRESHET_RUN_DIR"};
  if (const char* xdg = std::getenv("XDG_RUNTIME_DIR"); xdg != nullptr && *xdg == '/') {
    return {std::string(xdg) + "/freshet", "XDG_RUNTIME_DIR"};
  }
  return {format("/tmp/freshet-{}", ::geteuid()), {}};
}

/// With what to do where nobody gave the folder.
Error with_way_out(const Error& error, const DefaultFolder& folder) {
  const std::string named = folder.named_by.empty() ? "" : format(" (named by {})", folder.named_by);
  return {error.code(), format("{}{}; set FRESHET_RUN_DIR to a folder of your own (mode 0700), in a folder that exists",
                               error.message(), named)};
}

/// Reads the files themselves whenever it is asked, so its answers are never older than the question.
class HostModelWatch final : public Directory::Watch {
 public:
  HostModelWatch(std::unique_ptr<HostDirectory> directory, std::shared_ptr<HostFolder> folder, std::string model)
      : directory_(std::move(directory)), folder_(std::move(folder)), model_(std::move(model)) {
    (void)hear();
  }

  int descriptor() const override { return news_ ? news_->descriptor() : -1; }
  bool take() override { return hear() || (news_ && news_->take(model_)); }
  Result<Directory::Entry> entry() override { return directory_->lookup(model_); }
  Result<CurrentVersion> current() override { return directory_->current(model_); }
  Result<std::vector<Directory::Server>> servers() override { return directory_->servers(model_); }

 private:
  /// True when there is another folder than before, where anything may have happened.
  bool hear() {
    HostFolder::Descriptor now = folder_->descriptor();
    if (now == heard_) return false;
    heard_ = std::move(now);
    news_.reset();
    if (auto opened = HostWatch::open(folder_->path())) news_.emplace(std::move(*opened));
    return true;
  }

  const std::unique_ptr<HostDirectory> directory_;
  const std::shared_ptr<HostFolder> folder_;
  const std::string model_;
  HostFolder::Descriptor heard_;
  std::optional<HostWatch> news_;
};

}  // namespace

Result<std::unique_ptr<HostDirectory>> HostDirectory::open(const std::string& folder) {
  std::error_code failure;
  const DefaultFolder by_default = folder.empty() ? default_folder() : DefaultFolder{};
  const std::string path = std::filesystem::absolute(folder.empty() ? by_default.path : folder, failure).string();
  if (failure) return fail(Code::io_error, format("host directory {}: {}", folder, failure.message()));
  Result<std::shared_ptr<HostFolder>> opened = HostFolder::open(path);
  if (!opened && folder.empty()) return fail(with_way_out(opened.error(), by_default));
  if (!opened) return fail(std::move(opened).error());
  return std::unique_ptr<HostDirectory>(new HostDirectory(std::move(*opened), folder.empty()));
}

Result<std::unique_ptr<Directory::Claim>> HostDirectory::claim(const std::string& model) {
  FRESHET_TRY(check_model_name(model));
  host_files::KeptNumbers kept;
  if (is_default_) kept = host_files::open_kept_numbers(folder_->path(), model);
  return HostClaim::take(folder_, model, std::move(kept));
}

Result<Directory::Entry> HostDirectory::lookup(const std::string& model) {
  FRESHET_TRY(check_model_name(model));
  const HostFolder::Descriptor held = folder_->descriptor();
  const int folder = held->get();
  const auto gone = [&] { return fail(Code::not_found, format("nobody publishes {} in {}", model, folder_->path())); };
  auto lock = host_files::open_file(folder, model + ".lock", O_RDONLY);
  if (!lock) return lock.error().code() == Code::not_found ? gone() : fail(std::move(lock).error());
  FRESHET_ASSIGN(const bool living, host_files::is_locked(lock->get(), model + ".lock"));
  if (!living) return gone();
  auto text = host_files::read_named(folder, model + std::string(host_files::kEntrySuffix), host_files::kTextBytesMax);
  if (!text) return text.error().code() == Code::not_found ? gone() : fail(std::move(text).error());
  return parse_entry_json(*text, model);
}

Result<std::vector<std::string>> HostDirectory::names() const {
  // A fresh description: reading through a shared one would move everybody's position.
  FileDescriptor folder(::openat(folder_->descriptor()->get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return fail_errno(errno, "list host directory " + folder_->path());
  DIR* stream = ::fdopendir(folder.get());
  if (stream == nullptr) return fail_errno(errno, "list host directory " + folder_->path());
  folder.release();
  std::vector<std::string> names;
  for (std::size_t files = 0; files < kFilesMax; ++files) {
    const dirent* const item = ::readdir(stream);
    if (item == nullptr) break;
    if (host_files::is_aside(item->d_name)) {
      host_files::drop_left_aside(::dirfd(stream), item->d_name);
      continue;
    }
    names.emplace_back(item->d_name);
  }
  ::closedir(stream);
  return names;
}

Result<std::vector<Directory::Entry>> HostDirectory::list() {
  FRESHET_ASSIGN(const std::vector<std::string> files, names());
  std::vector<Entry> entries;
  for (const std::string& name : files) {
    if (!name.ends_with(host_files::kEntrySuffix)) continue;
    if (auto entry = lookup(name.substr(0, name.size() - host_files::kEntrySuffix.size()))) {
      entries.push_back(std::move(*entry));
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.model < b.model; });
  return entries;
}

Result<std::unique_ptr<Directory::Watch>> HostDirectory::watch(const std::string& model) {
  FRESHET_TRY(check_model_name(model));
  return std::make_unique<HostModelWatch>(std::unique_ptr<HostDirectory>(new HostDirectory(folder_, is_default_)),
                                          folder_, model);
}

Result<CurrentVersion> HostDirectory::current(const std::string& model) {
  FRESHET_TRY(check_model_name(model));
  return host_files::read_current(folder_->descriptor()->get(), model);
}

Result<CurrentVersion> HostDirectory::compare_and_swap_current(const std::string& model, const CurrentVersion& expected,
                                                               const CurrentVersion& desired) {
  return host_files::swap_current(folder_->descriptor()->get(), model, expected, desired);
}

Status HostDirectory::serve(const std::string& model, const Server& server, Duration time_to_live) {
  FRESHET_TRY(check_server(model, server, Code::invalid_argument));
  const Time until = system_clock().now() + std::clamp(time_to_live, Duration::zero(), kTimeToLiveMax);
  return host_files::replace(folder_->descriptor()->get(), host_files::server_file(model, server.address),
                             host_files::server_text(model, {.server = server, .until = until}));
}

Status HostDirectory::stop_serving(const std::string& model, const std::string& address) {
  FRESHET_TRY(check_server(model, {.address = address}, Code::invalid_argument));
  const std::string name = host_files::server_file(model, address);
  if (::unlinkat(folder_->descriptor()->get(), name.c_str(), 0) != 0 && errno != ENOENT)
    return fail_errno(errno, "remove " + name);
  return {};
}

Result<std::vector<Directory::Server>> HostDirectory::servers(const std::string& model) {
  FRESHET_TRY(check_model_name(model));
  FRESHET_ASSIGN(const std::vector<std::string> files, names());
  const Time now = system_clock().now();
  std::vector<Server> servers;
  for (const std::string& name : files) {
    if (!host_files::is_server_file(name, model) || servers.size() >= kServersMax) continue;
    const auto text = host_files::read_named(folder_->descriptor()->get(), name, host_files::kTextBytesMax);
    if (!text) continue;
    const auto record = host_files::parse_server(*text, model);
    // Beyond the longest time that can be asked for, it was written before the host started again.
    if (record && record->until > now && record->until <= now + kTimeToLiveMax) {
      servers.push_back(record->server);
    } else {
      ::unlinkat(folder_->descriptor()->get(), name.c_str(), 0);
    }
  }
  std::sort(servers.begin(), servers.end(), [](const Server& a, const Server& b) { return a.address < b.address; });
  return servers;
}

}  // namespace freshet
