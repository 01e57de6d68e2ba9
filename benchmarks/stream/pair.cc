// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/stream/pair.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

#include "core/base/format.h"

namespace freshet::benchmarks {

Result<std::unique_ptr<ScratchFolder>> ScratchFolder::create() {
  std::string path = (std::filesystem::temp_directory_path() / "freshet-bench-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr) return fail_errno(errno, "make a folder");
  return std::unique_ptr<ScratchFolder>(new ScratchFolder(path));
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Result<std::string> ScratchFolder::folder(const std::string& name) const {
  const std::string path = path_ + "/" + name;
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno(errno, "make " + path);
  return path;
}

Result<UpdateTimes> update(PublisherPeer& publisher, SubscriberPeer& subscriber, std::uint64_t named_tensors) {
  UpdateTimes times;
  FRESHET_ASSIGN(times.published, publisher.begin_publish(named_tensors));
  auto swapped = subscriber.wait_for(times.published.version);
  if (!swapped) {
    const auto why = subscriber.ask("error");
    return fail(Error(swapped.error()).with_context(why ? *why : std::string("the subscriber")));
  }
  times.swapped = *swapped;
  FRESHET_TRY(publisher.finish_publish(times.published));
  const auto ms_since_start = [&](std::int64_t ns) { return static_cast<double>(ns - times.published.start_ns) / 1e6; };
  times.blocked_ms = ms_since_start(times.published.returned_ns);
  times.committed_ms = ms_since_start(times.published.committed_ns);
  times.swapped_ms = ms_since_start(times.swapped.at_ns);
  times.commit_to_callback_us = (times.swapped_ms - times.committed_ms) * 1e3;
  return times;
}

Status check_same(PublisherPeer& publisher, SubscriberPeer& subscriber) {
  FRESHET_ASSIGN(const std::string here, publisher.digest());
  FRESHET_ASSIGN(const std::string there, subscriber.digest());
  if (here == there) return {};
  return fail(Code::corrupt, format("the trainer has {}, the server {}", here, there));
}

}  // namespace freshet::benchmarks
