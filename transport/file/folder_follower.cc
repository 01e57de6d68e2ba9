// SPDX-License-Identifier: Apache-2.0
#include "transport/file/folder_follower.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "core/base/format.h"
#include "core/base/text.h"
#include "transport/file/folder_feed.h"

namespace freshet::file {
namespace {

constexpr std::string_view kScheme = "file://";
/// Readers may hold much of the arena; a version that finds no room waits so long for some, between two looks at
/// `stop`.
constexpr Duration kRoomPause = std::chrono::milliseconds(100);

Result<std::string> make_private_folder() {
  std::string name = (std::filesystem::temp_directory_path() / "freshet-file-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) return fail_errno(errno, "make folder " + name);
  return name;
}

/// Turns what the feed reads into versions of a publisher.
class Republisher {
 public:
  explicit Republisher(Publisher& publisher) : publisher_(publisher) {}

  Status publish(const FolderWeights& weights) {
    const std::vector<TensorView> tensors = weights.tensors();
    PublishOptions options{.number = weights.number()};
    // What the feed calls changed is so since what it read before, so that has to be what was published before.
    if (in_step_) options.changed = Changed::only(weights.changed());
    FRESHET_ASSIGN(options.new_architecture, architecture_of(tensors));
    auto receipt = publisher_.publish(tensors, options);
    in_step_ = receipt.has_value();
    if (!receipt) return fail(std::move(receipt).error());
    return {};
  }

 private:
  Result<std::shared_ptr<const Architecture>> architecture_of(const std::vector<TensorView>& tensors) {
    std::vector<TensorSpec> specs;
    for (const TensorView& tensor : tensors) specs.push_back(tensor.spec);
    const bool as_before = architecture_ != nullptr && std::ranges::equal(architecture_->tensors(), specs);
    if (!as_before) {
      FRESHET_ASSIGN(architecture_, Architecture::guess_chain(std::move(specs)));
    }
    return architecture_;
  }

  Publisher& publisher_;
  std::shared_ptr<const Architecture> architecture_;
  bool in_step_ = false;
};

}  // namespace

bool is_folder_address(const std::string& text) { return text.starts_with(kScheme); }

Result<std::string> folder_of_address(const std::string& text) {
  const std::string path = is_folder_address(text) ? text.substr(kScheme.size()) : std::string();
  if (path.starts_with('/')) return path;
  return fail(Code::invalid_argument,
              format("{} is not a folder's address; write file:///an/absolute/path", shown(text)));
}

Result<std::unique_ptr<FolderFollower>> FolderFollower::open(Options options) {
  FRESHET_ASSIGN(std::string private_folder, make_private_folder());
  FRESHET_ASSIGN(Wake stop, Wake::open());
  std::unique_ptr<FolderFollower> follower(
      new FolderFollower(std::move(options), std::move(private_folder), std::move(stop)));
  FRESHET_ASSIGN(follower->publisher_, Publisher::open({.model = follower->options_.model,
                                                        .hub_options = {.directory = follower->private_folder_},
                                                        .number_floor = follower->options_.after}));
  try {
    follower->thread_ = std::thread([raw = follower.get()] { raw->follow(); });
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start a follower's thread: {}", error.what()));
  }
  return follower;
}

FolderFollower::~FolderFollower() {
  stop_.wake();
  if (thread_.joinable()) thread_.join();
  publisher_.reset();
  std::error_code ignored;
  if (!private_folder_.empty()) std::filesystem::remove_all(private_folder_, ignored);
}

void FolderFollower::follow() {
  FolderFeed feed(options_.folder, {.every = options_.every, .after = options_.after});
  Republisher republisher(*publisher_);
  for (;;) {
    const auto weights = feed.next(Time::max(), stop_.descriptor());
    if (!weights) {
      set_error(weights.error().message());
      continue;
    }
    if (*weights == nullptr) return;
    Status published = republisher.publish(**weights);
    while (!published && published.error().code() == Code::out_of_space) {
      if (stop_.wait_until(system_clock().now() + kRoomPause)) return;
      published = republisher.publish(**weights);
    }
    set_error(published ? "" : published.error().message());
  }
}

std::string FolderFollower::last_error() const {
  MutexLock lock(mutex_);
  return last_error_;
}

void FolderFollower::set_error(std::string error) {
  MutexLock lock(mutex_);
  last_error_ = std::move(error);
}

}  // namespace freshet::file
