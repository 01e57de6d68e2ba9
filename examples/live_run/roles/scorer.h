// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Scores text on a version, and notes what it read on the way: the rows as they were gathered, the dense tensors
/// between the layers. That is what an answer carries, and what the checker compares.

#include "examples/live_run/messages.h"
#include "examples/live_run/model/model.h"
#include "transport/subscriber.h"

namespace freshet::live {

inline constexpr std::size_t kRowsShown = 10;  ///< How many of the rows that it read an answer tells about.

/// A pinned version as the model's passes read it.
class Pinned final : public TensorSource {
 public:
  explicit Pinned(const Snapshot& snapshot) : snapshot_(snapshot) {}
  const float* tensor(std::uint32_t index) const override {
    return reinterpret_cast<const float*>(snapshot_.bytes(index).data());
  }

 private:
  const Snapshot& snapshot_;
};

/// failed_precondition when a version is of another model than the layout says.
Status check_shape(const Layout& layout, const Architecture& architecture);

/// One thread at a time.
class Scorer {
 public:
  explicit Scorer(const Layout& layout) : layout_(layout) {}

  /// Fills in loss, dense and rows. `rows` and `dense` are one source; two only where a torn read is made on purpose.
  /// invalid_argument when the window is no longer than a context.
  Status score(const Text& window, const TensorSource& rows, const TensorSource& dense, ScoreAnswer& answer);

 private:
  void note_rows(std::uint64_t id, ScoreAnswer& answer) const;
  void note_dense(const TensorSource& source, ScoreAnswer& answer) const;

  const Layout& layout_;
  std::vector<Position> batch_;
  Pass pass_;
};

}  // namespace freshet::live
