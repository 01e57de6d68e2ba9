// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/stream/watch_memory.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bindings/cli/frame/graph_file.h"
#include "core/base/digest.h"
#include "core/base/env.h"
#include "core/base/format.h"
#include "core/base/log.h"
#include "transport/directory/state_folder.h"

namespace freshet::cli {
namespace {

constexpr std::uint64_t kMemoryBytesMax = std::uint64_t{16} << 20;

std::string absolute_path(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

std::int64_t modified_ns_of(const std::string& path) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) return 0;
  return std::int64_t{facts.st_mtim.tv_sec} * 1'000'000'000 + facts.st_mtim.tv_nsec;
}

}  // namespace

WatchMemory WatchMemory::open(const std::string& model, const std::string& folder) {
  WatchMemory memory;
  const Result<std::string> state = make_state_folder();
  if (!state) return memory;
  const std::string watched = absolute_path(folder + "/");
  memory.path_ =
      format("{}/{}.{:016x}.watched", *state, model, digest_of(bytes_of(watched.data(), watched.size())).low);
  memory.read();
  return memory;
}

void WatchMemory::read() {
  const Result<std::string> text = read_text_file(path_, kMemoryBytesMax);
  const auto object = nlohmann::json::parse(text ? *text : "", nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return;
  const auto member = [&](const char* key) { return object.contains(key) ? object[key] : nlohmann::json(); };
  const nlohmann::json newest = member("newest_ns");
  const nlohmann::json last = member("last");
  if (!newest.is_number_integer() || !last.is_string()) return;
  newest_ns_ = newest.get<std::int64_t>();
  last_ = last.get<std::string>();
  for (const nlohmann::json& name : member("names")) {
    if (name.is_string()) names_.insert(name.get<std::string>());
  }
  const nlohmann::json given = member("given");
  if (!given.is_object()) return;
  for (const auto& [path, modified_ns] : given.items()) {
    if (modified_ns.is_number_integer()) given_[path] = modified_ns.get<std::int64_t>();
  }
}

void WatchMemory::write() {
  if (path_.empty()) return;
  const nlohmann::json object = {{"newest_ns", newest_ns_}, {"names", names_}, {"last", last_}, {"given", given_}};
  const std::string text = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const Bytes pieces[] = {bytes_of(text.data(), text.size())};
  const Status written = write_file_atomically(system_env(), path_, pieces, false);
  if (!written && !told_) {
    log_line(LogLevel::warning, format("a restart will not know what was published: {}", written.error().message()));
  }
  told_ = !written;
}

bool WatchMemory::is_newer(const std::string& name, std::int64_t modified_ns) const {
  return modified_ns > newest_ns_ || (modified_ns == newest_ns_ && !names_.contains(name));
}

bool WatchMemory::has_given(const std::string& path) const {
  const std::string absolute = absolute_path(path);
  const auto given = given_.find(absolute);
  return given != given_.end() && given->second == modified_ns_of(absolute);
}

void WatchMemory::note(const std::string& name, std::int64_t modified_ns) {
  if (modified_ns > newest_ns_) names_.clear();
  newest_ns_ = std::max(newest_ns_, modified_ns);
  if (modified_ns == newest_ns_) names_.insert(name);
  last_ = name;
  write();
}

void WatchMemory::note_given(const std::string& path) {
  const std::string absolute = absolute_path(path);
  given_[absolute] = modified_ns_of(absolute);
  write();
}

}  // namespace freshet::cli
