// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One version on its way into a subscriber's arena: planned, asked for in a few requests at a time, written where it
/// will be served from, and proved. Nothing of it is served, nor known to anybody else, before all of it was proved;
/// destroyed before, it leaves the served version as it was, and what had been proved stays in the arena as a find for
/// the next try.
///
/// The proof of a tensor that came dense is its digest, taken as the bytes come. Of one that came as a delta it is the
/// delta's own (core/delta/element_delta.h), upon a base that was proved; who serves others again asks for the full
/// digest on top. A tensor whose proof fails is fetched once more, dense; when that fails too, the version is corrupt.
///
/// A relay shows what comes, as it comes, to those who fetch from it (serve/coming_version.h): they prove it
/// themselves. What was shown once is not written again.
///
/// Owned by the subscriber's loop thread. While is_quiet() is false the client writes into the arena for it: either the
/// client or this waits, or the client is destroyed first and on_client_dead() called.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/clock.h"
#include "core/model/manifest.h"
#include "transport/channel/channel.h"
#include "transport/source/coming_version.h"
#include "transport/subscribe/fetch/fetch_arena.h"
#include "transport/subscribe/fetch/fetch_plan.h"
#include "transport/subscribe/fetch/kept_deltas.h"
#include "transport/subscribe/fetch/received_delta.h"

namespace freshet::detail {

/// A version that lies in the arena, one segment per tensor.
struct FetchedVersion {
  std::shared_ptr<const Manifest> manifest;
  std::vector<SegmentIndex> segments;
  /// By tensor, null for one that came in another way; or none at all.
  std::vector<std::shared_ptr<const ReceivedDelta>> deltas;
};

/// A connection to a server, and what is known of it.
struct FetchChannel {
  std::unique_ptr<channel::ChannelClient> client;
  std::uint64_t last_request = 0;
  std::uint64_t link_bytes_per_second = 0;  ///< As measured; 0 when it was not yet.
};

struct FetchTally {
  std::uint64_t tensors = 0;         ///< Written.
  std::uint64_t tensors_delta = 0;   ///< Of those, by a delta.
  std::uint64_t bytes_moved = 0;     ///< Payload that came, also what was thrown away.
  std::uint64_t shadows_copied = 0;  ///< Shadows that had to be copied before a delta could be applied.
  std::uint64_t proofs_failed = 0;
};

class FetchInstall final : public channel::FetchSink {
 public:
  struct Options {
    FetchLimits limits;
    std::size_t requests_in_flight = 4;
    /// Deltas on their way, together; one that would pass it is fetched dense.
    std::uint64_t payload_bytes_max = std::uint64_t{256} << 20;
    bool deltas = true;
    bool full_proof = false;  ///< Of deltas too.
    bool for_device = false;  ///< Keeps deltas for a server's tensors on a device.
    /// As ReceivedDelta::table_bytes(), together.
    std::uint64_t for_device_bytes_max = kReceivedDeltasBytesMax;
    Duration patience = std::chrono::seconds(10);  ///< Without a byte.
  };
  struct Job {
    std::shared_ptr<const Manifest> manifest;
    protocol::SessionId session = 0;
    protocol::LeaseId lease = 0;
    std::shared_ptr<source::ComingVersion> coming;  ///< Where it is shown while it comes; null: nowhere.
  };

  /// `served`, null for none, is what deltas may start from. `channel`, `arena` and `kept` are borrowed.
  FetchInstall(Options options, Job job, const FetchedVersion* served, FetchChannel& channel, FetchArena& arena,
               KeptDeltas& kept);
  ~FetchInstall() override;

  /// Plans and asks. out_of_space when the arena has no room now.
  Status start(Time now);
  /// After each progress of the client, and at deadline(): asks for more, and notices the end.
  void carry_on(Time now);
  Time deadline() const { return deadline_; }

  /// Whether it is over, well or not; and whether nothing is written into the arena for it any more.
  bool is_over() const { return error_.has_value() || (started_ && unproved_ == 0); }
  bool is_quiet() const { return requests_.empty(); }
  /// Ends what is under way. The client is gone: its requests with it.
  void on_client_dead(const Error& why);
  void give_up(const Error& why);

  /// The version, whose segments are referred to once by the caller now; or why not. corrupt when the bytes that came
  /// are not the version's. Once. REQUIRES: is_over() and is_quiet().
  Result<FetchedVersion> take();
  const FetchTally& tally() const { return tally_; }

  Result<channel::Place> place(std::uint64_t request, std::size_t piece, channel::Encoding encoding,
                               std::uint64_t bytes) override;
  void on_bytes(std::uint64_t request, std::size_t piece, std::uint64_t bytes) override;
  void on_piece_done(std::uint64_t request, std::size_t piece) override;
  void on_request_done(std::uint64_t request, Status status) override;

 private:
  /// A tensor that is written here.
  struct Item {
    std::uint32_t tensor = 0;
    std::uint64_t bytes = 0;
    SegmentIndex segment = 0;
    std::optional<SegmentIndex> base;  ///< Where a delta may start from.
    bool proved = false;
    std::uint64_t request = 0;  ///< The last one that asked for it; 0 while it waits to be asked for.
    bool refused = false;       ///< By place(): to be asked for again.
    bool retried = false;
    bool shown = false;  ///< What comes of it can be read by others.
    channel::Encoding encoding = channel::Encoding::dense;
    MutableBytes memory;                              ///< Where a dense answer comes to.
    std::shared_ptr<std::vector<std::byte>> payload;  ///< Of a delta; null for none.
    std::uint64_t received = 0;
    std::optional<DigestStream> digest;  ///< Where the bytes come in pieces.
  };
  using Batch = std::vector<std::size_t>;  ///< Of items.

  Item& item_of(std::uint64_t request, std::size_t piece);
  Status find_room(const FetchPlan& plan);
  Status prove_empty(const FetchPlan& plan);
  bool can_start_from(std::uint32_t tensor) const;
  void ask_for_more();
  bool ask(const Batch& batch);
  void prove_dense(Item& item);
  void prove_delta(Item& item);
  Status write_delta(const Item& item);
  void bring_to_base(const Item& item, const std::optional<Content>& shadow, MutableBytes memory);
  void on_proof_failed(Item& item, const Error& why);
  void fetch_again(std::size_t item);
  void show_begin(Item& item);
  /// To `coming`, which keeps it.
  void show_proved(std::uint32_t tensor, SegmentIndex segment);
  /// What was shown is left as it is, and another segment written. False when there is none.
  bool leave_shown(Item& item);
  void end_with(Error error);
  void measure_link(Time now);

  // Constant after construction.
  const Options options_;
  const Job job_;
  const std::optional<FetchedVersion> served_;
  FetchChannel& channel_;
  FetchArena& arena_;
  KeptDeltas& kept_;

  std::vector<std::optional<SegmentIndex>> segments_;  ///< By tensor, referred to.
  std::vector<SegmentIndex> bases_;                    ///< Referred to.
  std::vector<Item> items_;
  std::deque<Batch> to_ask_;
  std::map<std::uint64_t, Batch> requests_;  ///< Under way.
  std::uint64_t payload_bytes_ = 0;          ///< Of deltas on their way.
  std::vector<std::shared_ptr<const ReceivedDelta>> for_device_;
  std::uint64_t for_device_bytes_ = 0;
  std::size_t unproved_ = 0;
  bool started_ = false;
  bool cancelled_ = false;
  std::optional<Error> error_;
  FetchTally tally_;
  Time started_at_{};
  std::uint64_t bytes_seen_ = 0;  ///< When the deadline was last put off.
  Time deadline_{};
};

}  // namespace freshet::detail
