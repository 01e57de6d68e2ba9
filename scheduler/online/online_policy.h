// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The online policy: decides after each row, from the losses so far, whether its version should be published now.
///
/// Two rates of cost are weighed. While a version that got old is served, each request pays the difference to the
/// newest; each publish stalls the training, and everything that is still to be learnt comes that much later to
/// everybody. On a straight slope the best interval is sqrt(2 (stall / step) (fall to come / slope)) rows, and the cost
/// near it is flat: half or twice as long costs a quarter more of what is a few per cent. So what matters is not to be
/// fooled: neither by noise (a lucky row is no progress), nor by an outlook that sees no further fall and takes stalls
/// for free.
///
///  1. LossTrend says how far back one may look, LossRecord takes a local straight line of that reach, at the present
///  row
///     and at the served one.
///  2. LossOutlook fits the long run. Where the local difference between the two versions does not differ from the
///     outlook's by more than its standard error, the outlook's is taken; beyond, what is significant of the local one
///     (James and Stein's shrinkage).
///  3. look_ahead() says when the next publish is best; if now, it is done.
///  4. No publish comes earlier than sqrt(2 (stall / step) F / slope) rows after the last one, where the slope is the
///     mean one since then, and F what would still be lost in a fifth of the rows to come at that slope, or three
///     tenths of the loss if that is less.
///  5. While the newest losses lie above the served version's by more than chance (Page's test), nothing is published.
///     If that goes on, the run has left its ways (a restart, a divergence), and rows after it say nothing about the
///     served version: it stays until the loss is below its level again. Where no row after it was usual, either
///     that version was hurt itself or only the batch after it: a row's loss is computed before its update, so the next
///     row's loss is the version's own. The mean of both guesses is then taken for its level.
///
/// Deterministic: the same rows and situations give the same decisions. No I/O, no clock; memory is bounded. Between
/// decisions a row costs some hundred nanoseconds; rows at which a decision is weighed (their number between two
/// publishes grows with the logarithm of the interval) cost some ten microseconds, or a few hundred when the outlook is
/// fitted again.

#include <cstdint>
#include <optional>
#include <string_view>

#include "scheduler/online/lookahead.h"
#include "scheduler/online/loss_outlook.h"
#include "scheduler/online/loss_record.h"
#include "scheduler/online/loss_trend.h"

namespace freshet {

/// Why the last weighed decision came out as it did.
struct OnlineVerdict {
  std::int64_t row = 0;  ///< 0: none was weighed yet.
  bool publish = false;
  std::string_view reason = "nothing was weighed yet";  ///< Static text.
  double served_loss = 0;                               ///< What the served version's loss is taken for now.
  double present_loss = 0;                              ///< And the present one's.
  double gain = 0;          ///< Expected of publishing now, against never again: loss x requests.
  double stall_cost = 0;    ///< Expected of the stall: loss x requests.
  double next_in_rows = 0;  ///< When the next publish is expected to be best.
};

/// One thread at a time.
class OnlinePolicy {
 public:
  /// The next row's loss; NaN, or anything that is not finite, when there is none.
  void learn(double loss);

  /// Whether to publish the version of the row just learnt.
  bool decide(const Situation& situation);

  /// The version of the row just learnt is the served one from now on, or soon: it was published, or is the first one.
  void published();

  std::int64_t row() const { return record_.rows(); }
  const OnlineVerdict& last() const { return verdict_; }
  const LossOutlook& outlook() const { return outlook_; }

 private:
  bool surprised() const;
  bool alarmed() const;
  void watch_served(double loss);
  bool weigh(const Situation& situation);
  void refit_if_old();
  std::optional<double> served_level(double reach);
  bool say(bool publish, std::string_view reason);

  LossTrend trend_;
  LossRecord record_;
  LossOutlook outlook_;
  OnlineVerdict verdict_;

  std::int64_t served_row_ = 0;
  std::optional<double> served_level_;  ///< As last estimated; kept when its rows are no longer in the record.
  LossRecord::Window served_window_;    ///< Rows beyond it say nothing about the served version.
  std::int64_t usual_row_ = 0;          ///< The newest row without excess.
  std::optional<double> own_loss_;      ///< Of the row after the served one, which is computed with its parameters.
  bool served_hurt_ = false;            ///< The run left its ways with the served version; no row says how it does.
  double excess_ = 0;                   ///< Of the newest losses over the served level, in units of the noise.
  double usual_interval_ = 0;           ///< Rows, on average of late; 0: not known.
  double early_level_ = 0;              ///< Where the run began.
  std::int64_t next_look_ = 0;          ///< No row before is weighed, unless the loss surprises.
  double level_looked_at_ = 0;
};

}  // namespace freshet
