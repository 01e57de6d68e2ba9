// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/server/server_machine.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "core/base/check.h"
#include "core/base/format.h"

namespace freshet::rpc {
namespace {

constexpr std::uint64_t kCreditParts = 4;

/// SplitMix64's finisher: distinct numbers for distinct inputs, none of which tells the next.
std::uint64_t mixed(std::uint64_t word) {
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ULL;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBULL;
  return word ^ (word >> 31);
}

}  // namespace

Upload::Upload(std::vector<Part> parts, std::shared_ptr<const void> plan)
    : parts_(std::move(parts)), plan_(std::move(plan)) {
  for (const Part& part : parts_) {
    index_.emplace(part.tensor, offsets_.size());
    offsets_.push_back(bytes_);
    bytes_ += part.bytes;
  }
}

Result<Bytes> Upload::bytes_of(std::uint32_t tensor) const {
  const auto at = index_.find(tensor);
  if (at == index_.end()) return fail(Code::not_found, format("tensor {} was not sent", tensor));
  return Bytes(memory_.get() + offsets_[at->second], parts_[at->second].bytes);
}

bool Upload::reserve() {
  memory_.reset(new (std::nothrow) std::byte[bytes_]);
  return memory_ != nullptr;
}

bool Upload::take(std::uint64_t offset, Bytes chunk) {
  if (offset != received_ || chunk.size() > bytes_ - received_) return false;
  if (!chunk.empty()) std::memcpy(memory_.get() + offset, chunk.data(), chunk.size());
  received_ += chunk.size();
  return true;
}

void ServerMachine::refuse(const Peer& peer, std::uint64_t request, Error error) {
  actions_.push_back(action::Refuse{.peer = peer, .request = request, .error = std::move(error)});
}

std::optional<Error> ServerMachine::why_not_welcome(const std::string& owner) const {
  if (closing_) return Error(Code::unavailable, "it is about to end");
  if (sessions_.size() >= limits_.clients_max) {
    return Error(Code::unavailable, format("it has {} clients already", sessions_.size()));
  }
  const auto share = shares_.find(owner);
  if (share != shares_.end() && share->second.clients >= limits_.clients_per_key_max) {
    return Error(Code::unavailable, format("it has {} clients with this key already, the most that one key may have",
                                           share->second.clients));
  }
  return std::nullopt;
}

void ServerMachine::on_hello(const Peer& peer, std::uint64_t request, std::uint32_t protocol, Time now,
                             std::string_view key) {
  if (protocol != kProtocolVersion) {
    return refuse(peer, request,
                  Error(Code::unsupported, format("this server speaks version {} of the protocol, the client {}",
                                                  kProtocolVersion, protocol)));
  }
  auto at = sessions_.find(peer);
  if (at == sessions_.end()) {
    const std::string owner(key.empty() ? std::string_view(peer) : key);
    if (auto why = why_not_welcome(owner)) return refuse(peer, request, std::move(*why));
    const std::uint64_t session = std::max<std::uint64_t>(mixed(seed_ + 0x9E3779B97F4A7C15ULL * ++sessions_made_), 1);
    ++shares_[owner].clients;
    at = sessions_.emplace(peer, Session{.session = session, .owner = owner}).first;
  }
  at->second.heard = now;
  actions_.push_back(
      action::Welcome{.peer = peer, .request = request, .session = at->second.session, .owner = at->second.owner});
}

ServerMachine::Session* ServerMachine::session_of(const Peer& peer, std::uint64_t request, Time now) {
  const auto at = sessions_.find(peer);
  if (at == sessions_.end()) {
    refuse(peer, request, Error(Code::unavailable, "this connection was given up, or sent no Hello"));
    return nullptr;
  }
  at->second.heard = now;
  return &at->second;
}

void ServerMachine::close_door(LateCalls late) {
  closing_ = true;
  late_ = late;
  if (late == LateCalls::wait) return;
  for (auto& [peer, session] : sessions_) session.unheard.clear();
}

void ServerMachine::on_ping(const Peer& peer, Time now) {
  const Session* const session = session_of(peer, 0, now);
  if (session == nullptr) return;
  action::Pong pong{.peer = peer, .running = {}};
  for (const auto& [request, ticket] : session->calls) pong.running.push_back(request);
  pong.running.insert(pong.running.end(), session->unheard.begin(), session->unheard.end());
  actions_.push_back(std::move(pong));
}

void ServerMachine::on_bye(const Peer& peer) {
  const auto at = sessions_.find(peer);
  if (at != sessions_.end()) end_session(at);
}

void ServerMachine::on_broken(const Peer& peer, const std::string& why) {
  refuse(peer, 0, Error(Code::corrupt, why));
  on_bye(peer);
}

void ServerMachine::end_session(Sessions::iterator at) {
  const auto calls = std::exchange(at->second.calls, {});
  for (const auto& [request, ticket] : calls) end_call(ticket);
  actions_.push_back(action::EndSession{.peer = at->first, .session = at->second.session});
  const std::string owner = std::move(at->second.owner);
  --shares_.at(owner).clients;
  sessions_.erase(at);
  forget_if_unused(owner);
}

void ServerMachine::forget_if_unused(const std::string& owner) {
  const auto at = shares_.find(owner);
  if (at == shares_.end()) return;
  const Share& share = at->second;
  if (share.clients + share.calls + share.jobs == 0 && share.question_bytes + share.upload_bytes == 0) {
    shares_.erase(at);
  }
}

void ServerMachine::count_question(const std::string& owner, std::uint64_t bytes) {
  question_bytes_ += bytes;
  shares_[owner].question_bytes += bytes;
}

void ServerMachine::uncount_question(const std::string& owner, std::uint64_t bytes) {
  question_bytes_ -= bytes;
  shares_.at(owner).question_bytes -= bytes;
}

std::optional<Error> ServerMachine::why_no_room(const Session& session, std::uint64_t question_bytes) const {
  const auto full = [](std::string what) { return Error(Code::out_of_space, std::move(what)); };
  if (session.calls.size() >= limits_.calls_per_client_max) {
    return full(format("{} requests of this client are being worked on, the most that one may have; wait for answers",
                       session.calls.size()));
  }
  const Share& share = shares_.at(session.owner);
  const std::size_t of_key = std::max(share.calls, share.jobs);
  if (of_key >= limits_.calls_per_key_max) {
    return full(format("{} requests of this key are being worked on, the most that one key may have; wait for answers",
                       of_key));
  }
  const std::size_t all = std::max(calls_.size(), jobs_.size());
  if (all >= limits_.calls_max) return full(format("{} requests are being worked on", all));
  if (question_bytes == 0) return std::nullopt;
  if (share.question_bytes > limits_.question_bytes_per_key_max ||
      question_bytes > limits_.question_bytes_per_key_max - share.question_bytes) {
    return full(format("{} bytes of long requests of this key are being worked on, and one key may have {}",
                       share.question_bytes, limits_.question_bytes_per_key_max));
  }
  if (question_bytes > limits_.question_bytes_max - question_bytes_) {
    return full(format("{} bytes of requests are being worked on", question_bytes_));
  }
  return std::nullopt;
}

void ServerMachine::on_call(const Peer& peer, std::uint64_t request, Question question, Time now) {
  Session* const session = session_of(peer, request, now);
  if (session == nullptr) return;
  if (request == 0 || session->calls.contains(request))
    return on_broken(peer, "a request has no number, or the number of another request");
  if (late_ != LateCalls::begin) {
    // What one client asks beyond that is lost to it.
    const bool has_room = session->unheard.size() < limits_.calls_per_client_max;
    if (late_ == LateCalls::wait && has_room) session->unheard.push_back(request);
    return;
  }
  const std::uint64_t bytes = question->bytes() > kTextBytesMax ? question->bytes() : 0;
  if (auto why = why_no_room(*session, bytes)) return refuse(peer, request, std::move(*why));
  const Ticket ticket = ++tickets_made_;
  session->calls.emplace(request, ticket);
  calls_.emplace(ticket, Call{.peer = peer, .owner = session->owner, .request = request, .moved = now});
  ++shares_.at(session->owner).calls;
  begin_job(ticket, {.owner = session->owner, .question_bytes = bytes});
  actions_.push_back(action::Run{
      .ticket = ticket, .session = session->session, .owner = session->owner, .question = std::move(question)});
}

void ServerMachine::on_refused(const Peer& peer, std::uint64_t request, Error error, Time now) {
  if (session_of(peer, request, now) == nullptr) return;
  if (request == 0) return on_broken(peer, "a request has no number, or the number of another request");
  refuse(peer, request, std::move(error));
}

ServerMachine::Call* ServerMachine::call_of(const Peer& peer, std::uint64_t request, Ticket* ticket) {
  const auto session = sessions_.find(peer);
  if (session == sessions_.end()) return nullptr;
  const auto named = session->second.calls.find(request);
  if (named == session->second.calls.end()) return nullptr;
  *ticket = named->second;
  return &calls_.at(named->second);
}

void ServerMachine::on_chunk(const Peer& peer, std::uint64_t request, std::uint64_t offset, Bytes chunk, Time now) {
  if (session_of(peer, 0, now) == nullptr) return;
  Ticket ticket = 0;
  Call* const call = call_of(peer, request, &ticket);
  if (call == nullptr) return;  // On its way when the put ended.
  if (!call->invited || chunk.empty() || chunk.size() > kChunkBytesMax || !call->upload->take(offset, chunk)) {
    return on_broken(peer, "a chunk that was not asked for");
  }
  call->moved = now;
  call->uncredited += chunk.size();
  if (call->uncredited > limits_.window_bytes) return on_broken(peer, "more chunks than it had credit for");
  if (call->upload->is_complete()) {
    store(ticket, *call);
  } else if (call->uncredited >= limits_.window_bytes / kCreditParts) {
    const bool was_owed = call->owed.has_value();
    give_credit(*call, now);
    if (call->owed && !was_owed && none_goes_on()) invite_waiting(now);
  }
}

bool ServerMachine::keeps_up(const Call& call, Time now) const {
  if (call.owed) return true;  // It would go on.
  const Duration spent = now - call.begun - limits_.upload_grace;
  if (spent <= Duration::zero()) return true;
  const auto seconds = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(spent).count());
  return now - call.moved <= limits_.upload_grace &&
         call.upload->received() / std::max<std::uint64_t>(limits_.upload_rate_min_crowded, 1) >= seconds;
}

bool ServerMachine::may_have_room(std::uint64_t turn, const std::string& owner, std::uint64_t bytes, Time now) const {
  std::uint64_t kept = 0;  // For the first that keeps up.
  bool is_first_of_key = true;
  for (const auto& [other_turn, ticket] : uploads_) {
    if (other_turn == turn) break;
    const Call& other = calls_.at(ticket);
    is_first_of_key = is_first_of_key && other.owner != owner;
    if (kept == 0 && keeps_up(other, now)) kept = other.upload->bytes() - other.room;
  }
  const std::uint64_t taken = upload_bytes_ + kept;
  if (taken > limits_.upload_bytes_max || bytes > limits_.upload_bytes_max - taken) return false;
  return is_first_of_key || shares_.at(owner).upload_bytes + bytes <= limits_.upload_bytes_max / 2;
}

void ServerMachine::give_credit(Call& call, Time now) {
  const std::uint64_t more = std::min(call.uncredited, call.upload->bytes() - call.room);
  if (more > 0 && !may_have_room(call.turn, call.owner, more, now)) {
    if (!call.owed) call.owed = now;
    return;
  }
  count_upload(call.owner, more);
  call.room += more;
  actions_.push_back(action::Credit{.peer = call.peer, .request = call.request, .bytes = call.uncredited});
  call.uncredited = 0;
  if (!call.owed) return;
  // What it waited is not its client's time.
  call.begun += now - *call.owed;
  call.moved = now;
  call.owed.reset();
}

void ServerMachine::count_upload(const std::string& owner, std::uint64_t bytes) {
  upload_bytes_ += bytes;
  shares_[owner].upload_bytes += bytes;
}

void ServerMachine::uncount_upload(const std::string& owner, std::uint64_t bytes) {
  FRESHET_CHECK(upload_bytes_ >= bytes);
  upload_bytes_ -= bytes;
  shares_.at(owner).upload_bytes -= bytes;
}

void ServerMachine::on_abandon(const Peer& peer, std::uint64_t request, Time now) {
  if (session_of(peer, 0, now) == nullptr) return;
  Ticket ticket = 0;
  const Call* const call = call_of(peer, request, &ticket);
  if (call == nullptr || call->upload == nullptr || call->upload->is_complete()) return;
  fail_call(ticket, Error(Code::cancelled, "the put was abandoned"));
  invite_waiting(now);
}

void ServerMachine::on_answered(Ticket ticket, Encoded reply, Time now) {
  end_job(ticket);
  if (const auto at = calls_.find(ticket); at != calls_.end()) {  // Else its client has gone.
    actions_.push_back(action::Reply{.peer = at->second.peer, .message = std::move(reply)});
    end_call(ticket);
  }
  invite_waiting(now);
}

void ServerMachine::on_progress(Ticket ticket, Encoded progress) {
  const auto at = calls_.find(ticket);
  if (at == calls_.end()) return;
  actions_.push_back(action::Reply{.peer = at->second.peer, .message = std::move(progress)});
}

void ServerMachine::on_planned(Ticket ticket, std::shared_ptr<Upload> upload, Time now) {
  const auto at = calls_.find(ticket);
  if (at == calls_.end()) {
    end_job(ticket);
    return invite_waiting(now);
  }
  at->second.question_bytes = std::exchange(jobs_.at(ticket).question_bytes, 0);  // Of the same key.
  end_job(ticket);
  if (upload->bytes() > limits_.upload_bytes_max) {
    fail_call(ticket, Error(Code::out_of_space, format("{} bytes are more than the {} that this server takes at once",
                                                       upload->bytes(), limits_.upload_bytes_max)));
    return invite_waiting(now);
  }
  at->second.upload = std::move(upload);
  at->second.uncredited = 0;
  at->second.moved = now;
  waiting_.push_back(ticket);
  invite_waiting(now);
}

void ServerMachine::on_dropped(Ticket ticket, Time now) {
  end_job(ticket);
  invite_waiting(now);
}

void ServerMachine::credit_owed(Time now) {
  for (const auto& [turn, ticket] : uploads_) {
    Call& call = calls_.at(ticket);
    if (call.owed) give_credit(call, now);
  }
}

bool ServerMachine::none_goes_on() const {
  std::uint64_t room = 0;
  for (const auto& [turn, ticket] : uploads_) {
    const Call& call = calls_.at(ticket);
    if (!call.owed) return false;
    room += call.room;
  }
  return uploads_.size() > 1 && room == upload_bytes_;  // Else one is being stored, and will give its room back.
}

void ServerMachine::invite_waiting(Time now) {
  credit_owed(now);
  while (none_goes_on()) {
    fail_call(uploads_.rbegin()->second,
              Error(Code::unavailable,
                    "the room for uploads is full of tensors of puts that all wait for more of it, "
                    "and this one began last: put it again"));
    credit_owed(now);
  }
  for (std::size_t looked = waiting_.size(); looked > 0; --looked) {
    const Ticket ticket = waiting_.front();
    waiting_.pop_front();
    const auto at = calls_.find(ticket);
    if (at == calls_.end()) continue;
    Call& call = at->second;
    if (may_have_room(0, call.owner, std::min(call.upload->bytes(), limits_.window_bytes), now)) {
      invite(ticket, call, now);
    } else {
      waiting_.push_back(ticket);
    }
  }
}

void ServerMachine::invite(Ticket ticket, Call& call, Time now) {
  call.room = std::min(call.upload->bytes(), limits_.window_bytes);
  count_upload(call.owner, call.room);
  call.turn = ++turns_made_;
  uploads_.emplace(call.turn, ticket);
  call.invited = true;
  call.moved = now;
  call.begun = now;
  if (!call.upload->reserve()) {
    return fail_call(ticket, Error(Code::out_of_space, format("no memory for {} bytes", call.upload->bytes())));
  }
  if (call.upload->is_complete()) {  // Tensors without a byte.
    store(ticket, call);
  } else {
    actions_.push_back(action::Invite{.peer = call.peer, .request = call.request, .upload = call.upload});
  }
}

void ServerMachine::release_room(Call& call) {
  uploads_.erase(std::exchange(call.turn, 0));
  uncount_upload(call.owner, std::exchange(call.room, 0));
}

void ServerMachine::begin_job(Ticket ticket, const Job& job) {
  count_question(job.owner, job.question_bytes);
  count_upload(job.owner, job.upload_bytes);
  ++shares_.at(job.owner).jobs;
  const bool is_only = jobs_.emplace(ticket, job).second;
  FRESHET_CHECK(is_only);
}

void ServerMachine::end_job(Ticket ticket) {
  const auto at = jobs_.find(ticket);
  FRESHET_CHECK(at != jobs_.end());
  const Job job = std::move(at->second);
  uncount_question(job.owner, job.question_bytes);
  uncount_upload(job.owner, job.upload_bytes);
  jobs_.erase(at);
  --shares_.at(job.owner).jobs;
  forget_if_unused(job.owner);
}

// The call's room, and its question's, go over to the job: its worker has the memory even if the call ends.
void ServerMachine::store(Ticket ticket, Call& call) {
  call.invited = false;
  release_room(call);
  uncount_question(call.owner, call.question_bytes);
  begin_job(ticket, {.owner = call.owner,
                     .question_bytes = std::exchange(call.question_bytes, 0),
                     .upload_bytes = call.upload->bytes()});
  actions_.push_back(
      action::Store{.ticket = ticket, .request = call.request, .owner = call.owner, .upload = call.upload});
}

void ServerMachine::end_call(Ticket ticket) {
  if (jobs_.contains(ticket)) actions_.push_back(action::Drop{.ticket = ticket});
  const auto at = calls_.find(ticket);
  release_room(at->second);
  const std::string owner = std::move(at->second.owner);
  uncount_question(owner, at->second.question_bytes);
  --shares_.at(owner).calls;
  if (const auto session = sessions_.find(at->second.peer); session != sessions_.end()) {
    session->second.calls.erase(at->second.request);
  }
  calls_.erase(at);
  forget_if_unused(owner);
}

void ServerMachine::fail_call(Ticket ticket, Error error) {
  const Call& call = calls_.at(ticket);
  refuse(call.peer, call.request, std::move(error));
  end_call(ticket);
}

bool ServerMachine::is_stalled(const Call& call, Time now) const {
  return call.invited && !call.owed && now - call.moved > limits_.stall;
}

bool ServerMachine::is_too_slow(const Call& call, bool crowded, Time now) const {
  if (!call.invited || call.owed) return false;
  const std::uint64_t rate = crowded ? limits_.upload_rate_min_crowded : limits_.upload_rate_min;
  const Duration spent = now - call.begun - limits_.stall;
  if (spent <= Duration::zero()) return false;
  const auto seconds = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(spent).count());
  return call.upload->received() / std::max<std::uint64_t>(rate, 1) < seconds;
}

bool ServerMachine::is_crowded() const {
  return std::ranges::any_of(waiting_, [&](Ticket ticket) { return calls_.contains(ticket); }) ||
         std::ranges::any_of(uploads_, [&](const auto& entry) { return calls_.at(entry.second).owed.has_value(); });
}

void ServerMachine::on_tick(Time now) {
  for (auto at = sessions_.begin(); at != sessions_.end();) {
    const auto next = std::next(at);
    if (now - at->second.heard > limits_.silence) end_session(at);
    at = next;
  }
  const bool crowded = is_crowded();
  std::vector<std::pair<Ticket, const char*>> ended;
  for (const auto& [ticket, call] : calls_) {
    if (is_stalled(call, now)) {
      ended.emplace_back(ticket, "no bytes of its tensors came for too long");
    } else if (is_too_slow(call, crowded, now)) {
      ended.emplace_back(ticket,
                         "its tensors came too slowly, and it lost its room: put it again over a faster connection");
    }
  }
  std::sort(ended.begin(), ended.end());
  for (const auto& [ticket, why] : ended) fail_call(ticket, Error(Code::timed_out, why));
  invite_waiting(now);
}

}  // namespace freshet::rpc
