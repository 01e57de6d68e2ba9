// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/roles/scorer.h"

#include <algorithm>

#include "core/base/format.h"
#include "examples/live_run/roles/checker.h"

namespace freshet::live {

Status check_shape(const Layout& layout, const Architecture& architecture) {
  const auto expected = layout.tensors();
  const auto found = architecture.tensors();
  if (std::equal(expected.begin(), expected.end(), found.begin(), found.end())) return {};
  return fail(Code::failed_precondition,
              format("the version has {} tensors that are not this run's {}", found.size(), expected.size()));
}

Status Scorer::score(const Text& window, const TensorSource& rows, const TensorSource& dense, ScoreAnswer& answer) {
  if (window.size() <= layout_.orders()) {
    return fail(Code::invalid_argument, format("a window of {} bytes is all context", window.size()));
  }
  batch_.clear();
  for (std::size_t i = layout_.orders(); i < window.size(); ++i) batch_.push_back(window.data() + i);
  gather(layout_, rows, batch_, pass_);
  note_rows(answer.id, answer);
  answer.loss = infer(layout_, dense, pass_);
  note_dense(dense, answer);
  return {};
}

/// Of the copies that the dense layers then read, so a row that changed while it was copied shows.
void Scorer::note_rows(std::uint64_t id, ScoreAnswer& answer) const {
  const std::size_t rows = pass_.rows.size();
  const std::size_t shown = std::min(kRowsShown, rows);
  for (std::size_t i = 0; i < shown; ++i) {
    const std::size_t row = (id + i * rows / shown) % rows;
    const float* copy = pass_.input.data() + row * layout_.row_floats();
    answer.rows.push_back({.row = pass_.rows[row].row, .digest = digest_low(bytes_of(copy, layout_.row_floats()))});
  }
}

void Scorer::note_dense(const TensorSource& source, ScoreAnswer& answer) const {
  for (std::uint32_t tensor = 0; tensor < kDenseTensors; ++tensor) {
    const std::uint64_t floats = layout_.tensors()[tensor].bytes() / sizeof(float);
    answer.dense.push_back(digest_low(bytes_of(source.tensor(tensor), floats)));
  }
}

}  // namespace freshet::live
