// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What the tests of the two protocol machines share: a tiny model, versions of it, and the actions of one kind.

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/model/graph.h"
#include "core/model/manifest.h"
#include "transport/protocol/messages.h"
#include "transport/protocol/publisher/held_versions.h"

namespace freshet::protocol::test {

inline constexpr const char* kModel = "demo";
inline constexpr std::uint64_t kTensorBytes = 64;

inline Time at(std::int64_t ms) { return Time(std::chrono::seconds(100)) + std::chrono::milliseconds(ms); }

inline std::shared_ptr<const Architecture> two_tensors() {
  static const auto kArchitecture =
      *Architecture::guess_chain({{.name = "a.w", .dtype = DType::u8, .shape = {kTensorBytes}},
                                  {.name = "b.w", .dtype = DType::u8, .shape = {kTensorBytes}}});
  return kArchitecture;
}

/// Version `number` with tensor 0 in segment `first` and tensor 1 in segment `second`.
inline CommittedVersion version(VersionNumber number, SegmentIndex first, SegmentIndex second) {
  const VersionId id{.run = {.high = 1, .low = 2}, .incarnation = 1, .sequence = number};
  Manifest manifest;
  manifest.name = {.model = kModel, .number = number};
  manifest.id = id;
  manifest.architecture = two_tensors();
  manifest.owners = OwnerMap::all_written_by(id, 2);
  manifest.digests.resize(2);
  CommittedVersion committed{
      .encoded_manifest = encode(manifest), .segments = {first, second}, .slab_bytes = {1 << 20}};
  for (const SegmentIndex segment : committed.segments) {
    committed.places.push_back({.slab = 0, .offset = segment * kTensorBytes, .bytes = kTensorBytes});
  }
  committed.manifest = std::make_shared<const Manifest>(std::move(manifest));
  return committed;
}

/// Messages of a publisher that never rolled back: what is current is the newest.
inline Message with_newest_current(Message message) {
  const auto fill = [](auto& m) {
    if constexpr (requires { m.newest, m.current; }) {
      if (m.current == Current{}) m.current.version = m.newest;
    }
  };
  std::visit(fill, message);
  return message;
}

/// The messages of type M among actions that send messages.
template <typename M, typename SendAction, typename Actions>
std::vector<M> messages(const Actions& actions) {
  std::vector<M> found;
  for (const auto& action : actions) {
    const auto* send = std::get_if<SendAction>(&action);
    if (send == nullptr) continue;
    if (const auto* message = std::get_if<M>(&send->message)) found.push_back(*message);
  }
  return found;
}

template <typename A, typename Actions>
std::vector<A> actions_of(const Actions& actions) {
  std::vector<A> found;
  for (const auto& action : actions) {
    if (const auto* one = std::get_if<A>(&action)) found.push_back(*one);
  }
  return found;
}

}  // namespace freshet::protocol::test
