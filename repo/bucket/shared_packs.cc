// SPDX-License-Identifier: Apache-2.0
#include "repo/bucket/shared_packs.h"

#include <utility>

#include "core/base/deadline.h"
#include "core/base/interruption.h"
#include "repo/bucket/time_to_move.h"

namespace freshet::bucket {
namespace {

constexpr std::size_t kUnderWayMax = 2;
/// Of one object.
constexpr std::size_t kSharedBytesMax = std::size_t{8} << 20;
/// A waiting thread looks around at least so often; each upload has its own deadline.
constexpr Duration kPackLook = std::chrono::seconds(1);

}  // namespace

Result<SharedPacks::Where> SharedPacks::upload(Pack pack) {
  const auto own = std::make_shared<Waiting>(Waiting{.pack = std::move(pack), .where = {}});
  const MutexLock lock(mutex_);
  waiting_.push_back(own);
  while (!own->where) {
    if (own->is_taken || under_way_ == kUnderWayMax) {
      changed_.wait_until(mutex_, Interruption::next_look(deadline_in(kPackLook)));
      if (!Interruption::is_possible()) continue;
      mutex_.unlock();
      const Status wanted = Interruption::check();
      mutex_.lock();
      if (wanted || own->where) continue;
      std::erase(waiting_, own);
      return fail(wanted.error());
    }
    const Group group = take_group();
    ++under_way_;
    mutex_.unlock();
    const Result<log::ObjectName> object = upload_together(group);
    mutex_.lock();
    --under_way_;
    std::size_t offset = 0;
    for (const auto& one : group) {
      if (object) {
        one->where = Where{.object = *object, .offset = offset};
      } else if (one != own && object.error().code() == Code::cancelled) {
        one->is_taken = false;  // This thread alone must end.
        waiting_.push_front(one);
      } else {
        one->where = Result<Where>(fail(object.error()));
      }
      offset += one->pack.size();
    }
    changed_.notify_all();
  }
  return *own->where;
}

// The oldest ones. A thread that leads has its own among them, or comes back.
SharedPacks::Group SharedPacks::take_group() {
  Group group;
  std::size_t bytes = 0;
  while (!waiting_.empty() && (group.empty() || bytes + waiting_.front()->pack.size() <= kSharedBytesMax)) {
    bytes += waiting_.front()->pack.size();
    waiting_.front()->is_taken = true;
    group.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return group;
}

Result<log::ObjectName> SharedPacks::upload_together(const Group& group) {
  Pack together;
  for (const auto& one : group) {
    if (group.size() > 1) together.insert(together.end(), one->pack.begin(), one->pack.end());
  }
  const Bytes bytes = group.size() > 1 ? Bytes(together) : Bytes(group.front()->pack);
  FRESHET_ASSIGN(const log::ObjectName name, log_.draw_object());
  Creation creation = store_.create(log::object_key(name), bytes, time_to_move(store_, bytes.size()), crc32c_of(bytes));
  // The name was drawn: what stands there was made by an earlier request of this very call.
  if (creation.outcome == Created::created || creation.outcome == Created::exists) return name;
  return fail(std::move(creation.error));
}

}  // namespace freshet::bucket
