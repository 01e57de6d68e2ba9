// SPDX-License-Identifier: Apache-2.0
// What a hub has in the directory's folder, put back when somebody removed it: at logout, or with old files.

#include <unistd.h>

#include <cerrno>

#include "core/base/format.h"
#include "core/base/log.h"
#include "transport/zmq/hub/publisher_hub.h"

namespace freshet {
namespace {

constexpr Duration kTendEvery = std::chrono::seconds(1);

bool is_missing(const std::string& path) { return ::access(path.c_str(), F_OK) != 0 && errno == ENOENT; }

}  // namespace

void PublisherHub::tend() {
  if (listener_) listener_->tend(system_clock().now(), authenticator_.get());
  tend_folder();
}

void PublisherHub::tend_folder() {
  const Time at = system_clock().now();
  if (at < tend_at_) return;
  tend_at_ = at + kTendEvery;
  Result<bool> tended = directory_->tend();
  if (tended) tended = tend_files().map([&](bool any) { return any || *tended; });
  if (!tended) return tell_of_folder(tended);
  for (auto& [name, model] : models_) {
    const Result<bool> again = model.owner->tend();
    if (again) {
      tended = *tended || *again;
    } else if (again.error().code() == Code::failed_precondition) {
      log_line(LogLevel::warning, again.error().message());
      let_go(name);
    } else {
      tended = fail(Error(again.error()));
    }
    if (!tended) break;
  }
  tell_of_folder(tended);
}

Result<bool> PublisherHub::tend_files() {
  bool any = false;
  // The door first, as when the hub was opened.
  if (is_missing(door_path_)) {
    FRESHET_TRY(door_->listen_again());
    any = true;
  }
  const std::string ipc = "ipc://";
  if (!control_.address.is_tcp() && is_missing(control_.address.text().substr(ipc.size()))) {
    FRESHET_TRY(bind_again(control_));
    any = true;
  }
  return any;
}

void PublisherHub::tell_of_folder(const Result<bool>& tended) {
  const std::string& folder = directory_->folder();
  std::string error = tended ? "" : tended.error().message();
  if (tended && *tended) {
    log_line(LogLevel::warning,
             format("somebody removed files of this process in {}; they are there again, and others find it", folder));
  } else if (!tended && error != told_of_folder_) {
    log_line(LogLevel::warning, format("somebody removed files of this process in {}, and nobody finds it there until "
                                       "they can be made again: {}",
                                       folder, error));
  }
  told_of_folder_ = std::move(error);
}

}  // namespace freshet
