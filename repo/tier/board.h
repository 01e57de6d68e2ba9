// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The board: one page of shared memory per config, in /dev/shm/freshet-tier-UID, by which the keeper, the command line
/// and the readers inside programs tell each other what is configured and what happened. It is in memory and not in a
/// tier, so that a tier that fails takes no program with it. Its name is the hash of the config's bytes: the reader
/// finds the board without understanding the config, and finds none for a config that was changed since.
///
/// The fields before `tiers` are written before the board has its name, and stay; `device` alone follows a new mount.
/// All else changes under everybody's hands, by atomic operations on single words, so that a process may die anywhere.
/// Nobody believes more of it than the bounds that the functions here check.

#include <cstddef>
#include <cstdint>

#include "repo/tier/copy_name.h"

namespace freshet::tier {

inline constexpr std::uint64_t kBoardMagic = 0x33306472'616f4254;  // "TBoard03"
inline constexpr char kBoardFolder[] = "/dev/shm/freshet-tier-";   // and the user's number
inline constexpr std::uint32_t kSourcesMax = 16;
inline constexpr std::uint32_t kTiersMax = 8;
inline constexpr std::size_t kPathRoom = 4096;
inline constexpr std::size_t kReasonRoom = 256;
inline constexpr std::size_t kConfigBytesMax = std::size_t{64} * 1024;
/// An open after the 1024th of one file counts in the last row.
inline constexpr std::uint32_t kEpochRows = 1024;
/// A request to the keeper is the path of a file that wants a copy, and a zero byte; with this before it, of one that
/// was opened at the source and wants none. It is one write to a pipe, and of that size (PIPE_BUF) no two are mixed.
inline constexpr char kMissMark = '=';
inline constexpr std::size_t kRequestBytesMax = 4096;
/// Files beyond these have no row among the epochs.
inline constexpr std::uint32_t kFilesCounted = 1U << 20;
inline constexpr std::uint32_t kRefusals = 4096;
/// Runs that may go on at one time, as far as `evict = "unused"` needs them.
inline constexpr std::uint32_t kLiveRuns = 256;
/// `evict = "unused"`: what so many runs in a row did not open may go.
inline constexpr std::uint32_t kRunsKept = 3;
/// No run has that number.
inline constexpr std::uint32_t kNoRun = 0xffffffff;
/// What is locked of the board's lock file: this byte by the keeper, and for each place of a run the byte that many
/// behind it.
inline constexpr std::uint32_t kKeeperByte = 0;
inline constexpr std::uint32_t kRunByte = 1;
inline constexpr std::uint32_t kHintBits = 1U << 20;

struct BoardSource {
  std::uint64_t device;  ///< Major number in the upper half, minor in the lower.
  char path[kPathRoom];  ///< Absolute, without links, without a slash at its end, ended by zero.
};

struct BoardTier {
  std::uint64_t device;
  std::uint64_t quota_bytes;
  std::uint64_t used_bytes;
  std::uint64_t files;
  std::uint32_t off;  ///< 1: copies are neither made nor, where they cannot be opened, served.
  char reason[kReasonRoom - 4];
  char path[kPathRoom];
};

struct EpochRow {
  std::uint64_t opens;
  std::uint64_t hits;
  std::uint64_t hit_bytes;
  std::uint64_t miss_bytes;
};

struct Counters {
  std::uint64_t opens;
  std::uint64_t hits;
  std::uint64_t misses;
  std::uint64_t hit_bytes;
  std::uint64_t miss_bytes;
  std::uint64_t copied_files;
  std::uint64_t copied_bytes;
  std::uint64_t source_read_bytes;
  std::uint64_t evicted_files;
  std::uint64_t fallbacks;
  std::uint64_t corrupt;
  std::uint64_t source_faults;  ///< Files that could not be copied, for a reason of the source.
  std::uint64_t lost_requests;  ///< For copies: the keeper did not listen, or had too many.
  EpochRow epochs[kEpochRows];
};

struct Board {
  std::uint64_t magic;
  std::uint32_t source_count;
  std::uint32_t tier_count;
  std::uint32_t waits;            ///< first_open = "wait".
  std::uint32_t never_validates;  ///< validate = "never".
  std::uint32_t threads;
  std::uint64_t wait_ns;
  char config_path[kPathRoom];
  BoardSource sources[kSourcesMax];

  BoardTier tiers[kTiersMax];
  std::uint32_t keeper_pid;   ///< 0: none.
  std::uint32_t changes;      ///< Counts copies and refusals; who waits sleeps on it.
  std::uint64_t room_bytes;   ///< The most that a file may have to fit a tier.
  std::uint32_t follows;      ///< 1: programs told their order: opens at the source are told to the keeper.
  std::uint32_t awaits_open;  ///< 1: the keeper sleeps on it until a copy was opened, and has no room meanwhile.
  std::uint32_t wants_room;   ///< 1: something was not copied for want of room.
  std::uint64_t queued_files;
  std::uint64_t
      made;  ///< What the first tier's `.freshet-made` says; 0: not made yet. Tiers that were made anew count anew.
  /// Files that could not be copied as they were: identity_key() at that number modulo kRefusals. A lost one costs a
  /// wait.
  std::uint64_t refusals[kRefusals];
  /// Copies that were made lately: identity_key() at that number modulo kRefusals. A lost one is found later.
  std::uint64_t copies_made[kRefusals];
  /// file_key() in the upper 48 bits, and how often the file was opened in the lower 16; open addressing.
  std::uint64_t file_opens[kFilesCounted];
  /// At the same places: the run that was the newest when the file was opened last, or copied.
  std::uint32_t file_runs[kFilesCounted];
  std::uint32_t runs;  ///< How many runs there were; the newest one's number.
  /// A run that goes on, or went on there last: its process in the upper half, its number in the lower. It goes on
  /// while its place is locked.
  std::uint64_t live_runs[kLiveRuns];
  /// One bit for each spelling of a path, by its hash, that was opened or copied before: where the bit is set a copy is
  /// likely, and the reader looks for it before it opens the source. Right or wrong, the same bytes are served.
  std::uint64_t hints[kHintBits / 64];
  Counters counters;
};

inline std::uint64_t load(const std::uint64_t& word) { return __atomic_load_n(&word, __ATOMIC_RELAXED); }
inline std::uint32_t load(const std::uint32_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }
inline void store(std::uint64_t& word, std::uint64_t value) { __atomic_store_n(&word, value, __ATOMIC_RELAXED); }
inline void store(std::uint32_t& word, std::uint32_t value) { __atomic_store_n(&word, value, __ATOMIC_RELEASE); }
inline void add(std::uint64_t& word, std::uint64_t value) { __atomic_fetch_add(&word, value, __ATOMIC_RELAXED); }
/// Never below 0, whoever counts too little.
inline void take(std::uint64_t& word, std::uint64_t value) {
  for (std::uint64_t seen = load(word);;) {
    const std::uint64_t left = seen > value ? seen - value : 0;
    if (__atomic_compare_exchange_n(&word, &seen, left, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return;
  }
}

/// The counters of one time, word by word: others go on counting.
inline void copy_counters(const Counters& from, Counters& to) {
  const auto* source = reinterpret_cast<const std::uint64_t*>(&from);
  auto* target = reinterpret_cast<std::uint64_t*>(&to);
  for (std::size_t i = 0; i < sizeof(Counters) / sizeof(std::uint64_t); ++i) target[i] = load(source[i]);
}

/// Whether what was mapped may be used: the counts are within bounds and the paths end.
inline bool is_sound(const Board& board) {
  if (board.magic != kBoardMagic || board.source_count > kSourcesMax || board.tier_count > kTiersMax) return false;
  for (std::uint32_t i = 0; i < board.source_count; ++i) {
    if (board.sources[i].path[0] != '/' || board.sources[i].path[kPathRoom - 1] != '\0') return false;
  }
  for (std::uint32_t i = 0; i < board.tier_count; ++i) {
    if (board.tiers[i].path[0] != '/' || board.tiers[i].path[kPathRoom - 1] != '\0') return false;
  }
  return board.config_path[kPathRoom - 1] == '\0';
}

/// The place of the first source on that device; kSourcesMax when there is none.
inline std::uint32_t source_on(const Board& board, std::uint64_t device) {
  for (std::uint32_t i = 0; i < board.source_count; ++i) {
    if (load(board.sources[i].device) == device) return i;
  }
  return kSourcesMax;
}

/// Whether the path, absolute and without links, is below a source. `bytes` is its length.
inline bool is_below_source(const Board& board, const char* path, std::size_t bytes) {
  for (std::uint32_t i = 0; i < board.source_count; ++i) {
    const char* folder = board.sources[i].path;
    std::size_t at = 0;
    while (folder[at] != '\0' && at < bytes && folder[at] == path[at]) ++at;
    if (folder[at] == '\0' && at < bytes && (path[at] == '/' || at == 1)) return true;
  }
  return false;
}

/// The place of a file among `file_opens`, taken if need be, with `opens` added to its count, and its run noted;
/// kFilesCounted when there is no place. `nth` becomes its count.
inline std::uint32_t note_file(Board& board, std::uint64_t key, std::uint64_t opens, std::uint32_t& nth) {
  constexpr std::uint32_t kTries = 64;
  const std::uint64_t name = (key >> 16 << 16) != 0 ? key >> 16 << 16 : std::uint64_t{1} << 16;
  for (std::uint32_t i = 0; i < kTries; ++i) {
    const auto place = static_cast<std::uint32_t>((key + i) & (kFilesCounted - 1));
    std::uint64_t& slot = board.file_opens[place];
    std::uint64_t seen = load(slot);
    while (seen == 0 || (seen >> 16 << 16) == name) {
      const std::uint64_t count = (seen & 0xffff) + opens;
      const std::uint64_t next = name | (count < 0xffff ? count : 0xffff);
      if (__atomic_compare_exchange_n(&slot, &seen, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        store(board.file_runs[place], load(board.runs));
        nth = static_cast<std::uint32_t>(next & 0xffff);
        return place;
      }
    }
  }
  nth = 0;
  return kFilesCounted;
}

/// The how-manieth open of the file this is, from 1; 0 when there is no place to count it.
inline std::uint32_t count_file(Board& board, std::uint64_t key) {
  std::uint32_t nth = 0;
  (void)note_file(board, key, 1, nth);
  return nth;
}

/// Where the file is counted; kFilesCounted when it is not.
inline std::uint32_t place_of_file(const Board& board, std::uint64_t key) {
  constexpr std::uint32_t kTries = 64;
  const std::uint64_t name = (key >> 16 << 16) != 0 ? key >> 16 << 16 : std::uint64_t{1} << 16;
  for (std::uint32_t i = 0; i < kTries; ++i) {
    const auto place = static_cast<std::uint32_t>((key + i) & (kFilesCounted - 1));
    const std::uint64_t seen = load(board.file_opens[place]);
    if (seen == 0) break;
    if ((seen >> 16 << 16) == name) return place;
  }
  return kFilesCounted;
}

/// The run that was the newest when the file was opened last, or copied; kNoRun when nobody knows.
inline std::uint32_t last_run_of(const Board& board, std::uint64_t key) {
  const std::uint32_t place = place_of_file(board, key);
  return place < kFilesCounted ? load(board.file_runs[place]) : kNoRun;
}

/// The run from which runs are counted back: the oldest one that goes on, or else the newest. 0 when so many go on that
/// some have no place.
template <typename IsAlive>
std::uint32_t oldest_run(const Board& board, IsAlive is_alive) {
  std::uint32_t oldest = load(board.runs);
  std::uint32_t living = 0;
  for (std::uint32_t place = 0; place < kLiveRuns; ++place) {
    const std::uint64_t live = load(board.live_runs[place]);
    if (live == 0 || !is_alive(place)) continue;
    ++living;
    if (static_cast<std::uint32_t>(live) < oldest) oldest = static_cast<std::uint32_t>(live);
  }
  return living < kLiveRuns ? oldest : 0;
}

/// The row of the n-th opens of files, from 1; nullptr for 0.
inline EpochRow* row_of(Board& board, std::uint32_t nth) {
  if (nth == 0) return nullptr;
  return &board.counters.epochs[nth < kEpochRows ? nth - 1 : kEpochRows - 1];
}

/// One open of a regular file below a source. True: the keeper sleeps on `awaits_open`, and the caller wakes it. `nth`
/// becomes the how-manieth open of the file it is.
inline bool count_open(Board& board, std::uint64_t key, std::uint64_t bytes, bool hit, std::uint32_t& nth) {
  Counters& counters = board.counters;
  add(counters.opens, 1);
  add(hit ? counters.hits : counters.misses, 1);
  add(hit ? counters.hit_bytes : counters.miss_bytes, bytes);
  nth = count_file(board, key);
  if (EpochRow* const row = row_of(board, nth); row != nullptr) {
    add(row->opens, 1);
    if (hit) add(row->hits, 1);
    add(hit ? row->hit_bytes : row->miss_bytes, bytes);
  }
  if (load(board.awaits_open) == 0) return false;
  store(board.awaits_open, std::uint32_t{0});
  return true;
}

/// An open that was counted as a hit is read at the source after all.
inline void turn_into_miss(Board& board, std::uint32_t nth, std::uint64_t bytes) {
  Counters& counters = board.counters;
  take(counters.hits, 1);
  take(counters.hit_bytes, bytes);
  add(counters.misses, 1);
  add(counters.miss_bytes, bytes);
  if (EpochRow* const row = row_of(board, nth); row != nullptr) {
    take(row->hits, 1);
    take(row->hit_bytes, bytes);
    add(row->miss_bytes, bytes);
  }
}

inline void hint_at(Board& board, std::uint64_t hash) {
  std::uint64_t& word = board.hints[mixed(hash) % kHintBits / 64];
  const std::uint64_t bit = std::uint64_t{1} << (mixed(hash) % 64);
  if ((load(word) & bit) == 0) __atomic_fetch_or(&word, bit, __ATOMIC_RELAXED);
}
inline bool is_hinted(const Board& board, std::uint64_t hash) {
  return (load(board.hints[mixed(hash) % kHintBits / 64]) >> (mixed(hash) % 64) & 1) != 0;
}

inline void mark_made(Board& board, std::uint64_t key) { store(board.copies_made[key % kRefusals], key); }
inline bool is_made(const Board& board, std::uint64_t key) { return load(board.copies_made[key % kRefusals]) == key; }

inline void refuse_copy(Board& board, std::uint64_t key) { store(board.refusals[key % kRefusals], key); }
inline bool is_refused(const Board& board, std::uint64_t key) { return load(board.refusals[key % kRefusals]) == key; }

}  // namespace freshet::tier
