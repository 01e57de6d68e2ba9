// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How a member of a log behaves. Times are part of the protocol (repo/log/PROTOCOL.md, "Clocks"): all members of a log
/// have the same ones.

#include <cstddef>
#include <cstdint>

#include "core/base/clock.h"
#include "repo/log/broken_rule.h"
#include "repo/log/log_record.h"
#include "repo/log/log_state.h"

namespace freshet::log {

struct LogOptions {
  LogMember self;     ///< `id` is random, drawn for each life of a process.
  LogId first_token;  ///< Random. LogMachine::own_token() comes from it.
  std::uint32_t own_token_life_s = 2 * 3600;

  Duration look = std::chrono::seconds(1);
  /// An owner answers names for so long after the start of its last look.
  Duration answers = std::chrono::milliseconds(4500);
  /// A challenger waits so long for the owner's answer. Longer than `answers`, since two clocks' rates differ.
  Duration challenge = std::chrono::seconds(5);
  /// A batch that is not applied after so long, and a second for each of its megabytes, ends with timed_out.
  Duration append = std::chrono::seconds(10);
  std::size_t waiting_batches_max = 4096;
  std::size_t waiting_bytes_max = std::size_t{64} << 20;

  std::uint64_t records_per_snapshot = 1000;
  std::uint64_t bytes_per_snapshot = std::uint64_t{64} << 20;
  std::size_t snapshot_part_bytes = std::size_t{8} << 20;
  /// Between the commit that condemns an object and its erasure, by the store's clock. At least twice the life of a
  /// signed request.
  std::uint32_t grace_s = 3600;
  Duration ask_time = std::chrono::seconds(30);

  BrokenRule broken = BrokenRule::none;
};

}  // namespace freshet::log
