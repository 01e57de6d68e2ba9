// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Rules of the protocol that the simulator breaks (tests/repo/log/log_simulation.h).

#include <cstdint>

namespace freshet::log {

/// Rules that the simulator breaks, one at a time, to see that their breach is noticed. Never set elsewhere.
enum class BrokenRule : std::uint8_t {
  none,
  records_are_deleted,          ///< After a snapshot; they are to be emptied.
  emptied_records_say_nothing,  ///< They lose their writer and kind.
  emptied_records_are_skipped,  ///< By readers; they are to start anew.
  a_miss_settles,               ///< A time-out counts as "not applied" once nothing stands at N.
  any_record_settles,           ///< A record at N counts as one's own.
  challengers_do_not_wait,
  answers_without_looks,  ///< An owner answers names, however old its last look is.
  looks_count_from_their_end,
  challenged_looks_count,   ///< A look that meets an unanswered challenge counts.
  settled_creations_count,  ///< A creation that turned out to stand counts as a look.
  ending_owners_answer,     ///< Names, while their end is on its way.
  no_grace,                 ///< Condemned objects are erased at once.
  grace_by_own_clock,
  stamps_for_later_records,  ///< A time is noted for records that came after the question.
  live_uploads_are_swept,
  snapshots_without_tokens,
  condemned_objects_are_forgotten_early,  ///< While their token lives.
  condemned_objects_are_named,
};

}  // namespace freshet::log
