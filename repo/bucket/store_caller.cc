// SPDX-License-Identifier: Apache-2.0
#include "repo/bucket/store_caller.h"

#include <utility>
#include <variant>

#include "core/base/deadline.h"
#include "core/base/interruption.h"
#include "repo/log/log_record.h"

namespace freshet::bucket {
namespace {

using Kind = log::Answer::Kind;

log::Answer answer_with(Kind kind) {
  log::Answer answer;
  answer.kind = kind;
  return answer;
}
log::Answer failed(Error error) {
  log::Answer answer;
  answer.error = std::move(error);
  return answer;
}
log::Answer answer_of(Status status) { return status ? answer_with(Kind::done) : failed(std::move(status).error()); }

Kind kind_of(Created outcome) {
  switch (outcome) {
    case Created::created: return Kind::created;
    case Created::exists: return Kind::exists;
    case Created::refused: return Kind::refused;
    case Created::unsettled: break;
  }
  return Kind::unsettled;
}

/// One call.
struct CallOfStore {
  ObjectStore& store;
  const Time deadline;

  static Bytes as_bytes(const std::string& text) { return bytes_of(text.data(), text.size()); }

  log::Answer operator()(const log::call::Create& call) const {
    Creation creation = store.create(call.key, as_bytes(call.bytes), deadline);
    log::Answer answer = answer_with(kind_of(creation.outcome));
    answer.error = std::move(creation.error);
    return answer;
  }
  log::Answer operator()(const log::call::Replace& call) const {
    return answer_of(store.put(call.key, as_bytes(call.bytes), deadline));
  }
  log::Answer operator()(const log::call::Remove& call) const { return answer_of(store.remove(call.key, deadline)); }
  log::Answer operator()(const log::call::Get& call) const {
    Result<Object> object = store.get(call.key, call.bytes_max, deadline);
    if (!object && object.error().code() == Code::not_found) return answer_with(Kind::not_found);
    if (!object) return failed(std::move(object).error());
    log::Answer answer = answer_with(Kind::found);
    answer.bytes = std::move(object->bytes);
    return answer;
  }
  log::Answer operator()(const log::call::List& call) const {
    Result<ObjectPage> page = store.list(call.prefix, call.after, call.keys_max, deadline);
    if (!page) return failed(std::move(page).error());
    log::Answer answer = answer_with(Kind::done);
    answer.more = page->more;
    for (ListedObject& one : page->objects) {
      // A pool lists names of objects that never came to be, with no bytes. A snapshot's head has some. Whoever looks
      // for the newest one passes such names over; whoever goes on from a name removes them.
      if (one.bytes == 0 && call.after.empty() && one.key.starts_with(log::kSnapshotPrefix)) continue;
      answer.keys.push_back(std::move(one.key));
    }
    return answer;
  }
  log::Answer operator()(const log::call::AskTime&) const {
    const Result<std::int64_t> unix_s = store.now_unix_s(deadline);
    if (!unix_s) return failed(unix_s.error());
    log::Answer answer = answer_with(Kind::done);
    answer.unix_s = *unix_s;
    return answer;
  }
};

}  // namespace

log::Answer ObjectStoreCaller::run(const log::Call& call) {
  const StopInterrupts interrupts(stop_.get_token());
  return std::visit(CallOfStore{.store = *store_, .deadline = deadline_in(call.within)}, call.what);
}

}  // namespace freshet::bucket
