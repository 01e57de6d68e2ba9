// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/stream/stream_peer.h"

#include <sstream>

#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr std::chrono::seconds kPatience{120};

Result<std::string> answer_of(const std::string& line) {
  if (line.starts_with("ok ")) return line.substr(3);
  if (line == "ok") return std::string();
  return fail(Code::io_error, line);
}

Result<std::unique_ptr<Child>> start_role(const Place& place, const std::string& role, const PeerOptions& options) {
  return start_in(place, {own_path(), "--role=" + role, to_json(options)});
}

Result<std::int64_t> number_in(const Result<std::string>& answer) {
  if (!answer) return fail(answer.error());
  return std::strtoll(answer->c_str(), nullptr, 10);
}

}  // namespace

Result<std::unique_ptr<Child>> start_in(const Place& place, std::vector<std::string> words) {
  if (!place.environment.empty()) {
    words.insert(words.begin(), place.environment.begin(), place.environment.end());
    words.insert(words.begin(), "env");
  }
  if (place.space == nullptr) return Child::start(words);
  Result<std::unique_ptr<Child>> child = fail(Code::unavailable, "not started");
  FRESHET_TRY(place.space->run([&]() -> Status {
    child = Child::start(words);
    return {};
  }));
  return child;
}

Result<std::unique_ptr<PublisherPeer>> PublisherPeer::start(const Place& place, const PeerOptions& options) {
  std::unique_ptr<PublisherPeer> peer(new PublisherPeer());
  FRESHET_ASSIGN(peer->child_, start_role(place, "publisher", options));
  FRESHET_ASSIGN(const std::string line, peer->child_->read_line(kPatience));
  FRESHET_ASSIGN(peer->address_, answer_of(line));
  return peer;
}

Result<std::string> PublisherPeer::ask(const std::string& line) {
  FRESHET_TRY(child_->write_line(line));
  FRESHET_ASSIGN(const std::string answer, child_->read_line(kPatience));
  return answer_of(answer);
}

Status PublisherPeer::step(double share, std::uint64_t seed) {
  FRESHET_TRY(ask(format("step {} {}", share, seed)));
  return {};
}

Status PublisherPeer::rewrite(std::uint64_t seed) {
  FRESHET_TRY(ask(format("rewrite {}", seed)));
  return {};
}

Result<Published> PublisherPeer::begin_publish(std::uint64_t tensors) {
  FRESHET_ASSIGN(const std::string answer, ask(format("publish {}", tensors)));
  std::istringstream stream(answer);
  Published published;
  if (stream >> published.version >> published.start_ns >> published.returned_ns) return published;
  return fail(Code::corrupt, format("the publisher said '{}'", answer));
}

Status PublisherPeer::finish_publish(Published& published) {
  FRESHET_ASSIGN(const std::string answer, ask("committed"));
  std::istringstream stream(answer);
  if (stream >> published.committed_ns >> published.changed_bytes) return {};
  return fail(Code::corrupt, format("the publisher said '{}'", answer));
}

Result<Published> PublisherPeer::publish(std::uint64_t tensors) {
  FRESHET_ASSIGN(Published published, begin_publish(tensors));
  FRESHET_TRY(finish_publish(published));
  return published;
}

Result<std::string> PublisherPeer::digest() { return ask("digest"); }
Result<std::int64_t> PublisherPeer::cpu_us() { return number_in(ask("cpu")); }

Result<std::unique_ptr<SubscriberPeer>> SubscriberPeer::start(const Place& place, const PeerOptions& options) {
  std::unique_ptr<SubscriberPeer> peer(new SubscriberPeer());
  peer->channel_ = options.channel;
  FRESHET_ASSIGN(peer->child_, start_role(place, "subscriber", options));
  FRESHET_ASSIGN(const std::string line, peer->child_->read_line(kPatience));
  FRESHET_TRY(answer_of(line));
  return peer;
}

Result<Swapped> SubscriberPeer::wait_for(VersionNumber version, std::chrono::milliseconds at_most) {
  const auto deadline = std::chrono::steady_clock::now() + at_most;
  for (;;) {
    std::string line;
    if (swaps_.empty()) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      FRESHET_ASSIGN(line, child_->read_line(left));
    } else {
      line = std::move(swaps_.front());
      swaps_.pop_front();
    }
    std::istringstream stream(line);
    std::string word;
    Swapped swapped;
    if (!(stream >> word >> swapped.version >> swapped.at_ns >> swapped.bytes_fetched >> swapped.notify_ns >>
          swapped.channel) ||
        word != "swap") {
      return fail(Code::corrupt, format("the subscriber said '{}'", line));
    }
    if (!channel_.empty() && swapped.channel != channel_) {
      return fail(Code::failed_precondition, format("came over {}, not over {}", swapped.channel, channel_));
    }
    if (swapped.version >= version) return swapped;
  }
}

Result<std::string> SubscriberPeer::ask(const std::string& line) {
  FRESHET_TRY(child_->write_line(line));
  for (;;) {
    FRESHET_ASSIGN(std::string answer, child_->read_line(kPatience));
    if (!answer.starts_with("swap ")) return answer_of(answer);
    swaps_.push_back(std::move(answer));
  }
}

Result<std::string> SubscriberPeer::digest() { return ask("digest"); }
Result<std::int64_t> SubscriberPeer::cpu_us() { return number_in(ask("cpu")); }

}  // namespace freshet::benchmarks
